/*
 * pci_model.h: PCI configuration space by mechanism 1 behind the fake platform's ports.
 */
#ifndef QUELL_TESTS_FAKE_PCI_MODEL_H
#define QUELL_TESTS_FAKE_PCI_MODEL_H

#include "arch/types.h"

/* No functions; takes over fake_io_read and fake_io_write. */
void pci_model_init(void);

/*
 * A new function; the caller writes its header into the 256 bytes. Reads see them as they are;
 * writes go through, but the status register is write-one-to-clear and the ids stay.
 */
uint8_t *pci_model_add(unsigned bus, unsigned slot, unsigned fn, uint16_t vendor, uint16_t device);

void pci_model_put16(uint8_t *config, unsigned offset, uint16_t value);
void pci_model_put32(uint8_t *config, unsigned offset, uint32_t value);
uint16_t pci_model_get16(const uint8_t *config, unsigned offset);

extern uint64_t pci_model_reads; /* data port reads since init */

#endif
