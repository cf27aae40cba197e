/*
 * What a guest's machine holds that it cannot find by itself: a PCI bus reached through 0xCF8 and
 * one 16550. The numbers repeat vpci.h, vuart.h and ports.h; test_acpi compares them.
 */
DefinitionBlock ("", "DSDT", 2, "QUELL ", "GUEST   ", 1)
{
	/* Value 5 goes to the sleep control register for power-off (ACPI 6.4 4.8.3.7). */
	Name (\_S5, Package () { 5, 0, 0, 0 })

	Scope (\_SB)
	{
		Device (PCI0)
		{
			Name (_HID, EisaId ("PNP0A03"))
			Name (_UID, Zero)
			Name (_BBN, Zero)
			Name (_SEG, Zero)

			/* Every function uses MSI-X: no interrupt pin is routed. */
			Name (_PRT, Package () {})

			Name (_CRS, ResourceTemplate ()
			{
				WordBusNumber (ResourceProducer, MinFixed, MaxFixed, PosDecode,
					0, 0, 0, 0, 1)
				IO (Decode16, 0x0CF8, 0x0CF8, 1, 8)
				WordIO (ResourceProducer, MinFixed, MaxFixed, PosDecode, EntireRange,
					0, 0x0000, 0x0CF7, 0, 0x0CF8)
				WordIO (ResourceProducer, MinFixed, MaxFixed, PosDecode, EntireRange,
					0, 0x0D00, 0xFFFF, 0, 0xF300)
				DWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed,
					NonCacheable, ReadWrite,
					0, 0xC0000000, 0xFEBFFFFF, 0, 0x3EC00000)
			})
		}

		Device (COM1)
		{
			Name (_HID, EisaId ("PNP0501"))
			Name (_UID, 1)
			Name (_STA, 0x0F)
			Name (_CRS, ResourceTemplate ()
			{
				IO (Decode16, 0x03F8, 0x03F8, 1, 8)
				IRQ (Edge, ActiveHigh, Exclusive) { 4 }
			})
		}
	}
}
