#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"

#include <stdlib.h>
#include <string.h>

#define FUNCTION_MAX 64

static struct {
	uint32_t address; /* as in the address port, register 0 */
	uint8_t config[256];
} functions[FUNCTION_MAX];
static unsigned function_count;
static uint32_t address_port;
uint64_t pci_model_reads;

void pci_model_put16(uint8_t *config, unsigned offset, uint16_t value)
{
	memcpy(config + offset, &value, 2);
}

void pci_model_put32(uint8_t *config, unsigned offset, uint32_t value)
{
	memcpy(config + offset, &value, 4);
}

uint16_t pci_model_get16(const uint8_t *config, unsigned offset)
{
	uint16_t value;

	memcpy(&value, config + offset, 2);
	return value;
}

static uint8_t *selected(void)
{
	if (!(address_port >> 31))
		return NULL;
	for (unsigned i = 0; i < function_count; i++)
		if (functions[i].address == (address_port & 0xffffff00u))
			return functions[i].config;
	return NULL;
}

static uint32_t io_read(uint16_t port, unsigned width_bytes)
{
	uint8_t *config = selected();
	uint32_t value = UINT32_MAX;

	if (port < 0xcfc || port + width_bytes > 0xd00)
		abort();
	pci_model_reads++;
	if (config) {
		value = 0;
		memcpy(&value, config + (address_port & 0xfc) + (port - 0xcfc), width_bytes);
	}
	return value;
}

static void io_write(uint16_t port, unsigned width_bytes, uint32_t value)
{
	uint8_t *config;

	if (port == 0xcf8 && width_bytes == 4) {
		address_port = value;
		return;
	}
	if (port < 0xcfc || port + width_bytes > 0xd00)
		abort();
	config = selected();
	for (unsigned i = 0; config && i < width_bytes; i++) {
		unsigned offset = (address_port & 0xfc) + (port - 0xcfcu) + i;
		uint8_t byte = (uint8_t)(value >> i * 8);

		if (offset == 6 || offset == 7)
			config[offset] &= (uint8_t) ~(byte & (offset == 7 ? 0xf9 : 0));
		else if (offset >= 4)
			config[offset] = byte;
	}
}

void pci_model_init(void)
{
	function_count = 0;
	address_port = 0;
	pci_model_reads = 0;
	fake_io_read = io_read;
	fake_io_write = io_write;
}

uint8_t *pci_model_add(unsigned bus, unsigned slot, unsigned fn, uint16_t vendor, uint16_t device)
{
	uint8_t *config;

	if (function_count == FUNCTION_MAX)
		abort();
	functions[function_count].address = 1u << 31 | bus << 16 | slot << 11 | fn << 8;
	config = functions[function_count++].config;
	memset(config, 0, 256);
	pci_model_put16(config, 0, vendor);
	pci_model_put16(config, 2, device);
	return config;
}
