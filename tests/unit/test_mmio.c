#include "vmm/mmio.h"

#include "tests/fake/platform.h"
#include "tests/unit/test.h"
#include "vmm/alu.h"
#include "arch/x86/insn.h"
#include "vmm/vm.h"

#include <string.h>

#define BAR    VPCI_MMIO_BASE_GPA
#define RAM    0x10000u
#define CODE   0x1000u
#define TABLES 0x4000u

static uint8_t ram[RAM];
static struct vm vm;
static struct vcpu vcpu;
static struct hvm_state state;
static struct vpci_dev dev;

/* What was injected last. */
static int vector;
static int64_t error_code;

static void state_get(struct hvm_vcpu *v, struct hvm_state *s)
{
	(void)v;
	*s = state;
}

static void state_set(struct hvm_vcpu *v, const struct hvm_state *s)
{
	(void)v;
	state = *s;
}

static void inject(struct hvm_vcpu *v, uint8_t vec, int64_t code)
{
	(void)v;
	vector = vec;
	error_code = code;
}

static const struct hvm_ops ops = {.name = "test",
                                   .state_get = state_get,
                                   .state_set = state_set,
                                   .state_get_paging = state_get,
                                   .inject = inject};
const struct hvm_ops *hvm = &ops;

static enum vm_end ended;

void vm_end(struct vm *which, enum vm_end reason)
{
	CHECK(which == &vm);
	ended = reason;
}

/* A device that remembers: memory behind the BAR, and a record of each access. */
static uint8_t regs[0x1000];
static struct {
	bool write;
	uint64_t offset, value;
	unsigned width;
} record[1024];
static unsigned records;

static uint64_t bar_read(struct vpci_dev *d, unsigned bar, uint64_t offset, unsigned width)
{
	uint64_t value = 0;

	CHECK(d == &dev && bar == 0 && offset + width <= sizeof(regs) && offset % width == 0);
	CHECK_EQ(atomic_load(&vm.device_lock.held), 1);
	memcpy(&value, regs + offset, width);
	if (records < ARRAY_LEN(record)) {
		record[records].write = false;
		record[records].offset = offset;
		record[records].width = width;
		record[records++].value = value;
	}
	return value;
}

static void bar_write(struct vpci_dev *d, unsigned bar, uint64_t offset, unsigned width,
                      uint64_t value)
{
	CHECK(d == &dev && bar == 0 && offset + width <= sizeof(regs) && offset % width == 0);
	CHECK_EQ(atomic_load(&vm.device_lock.held), 1);
	memcpy(regs + offset, &value, width);
	if (records < ARRAY_LEN(record)) {
		record[records].write = true;
		record[records].offset = offset;
		record[records].width = width;
		record[records++].value = value;
	}
}

static const struct vpci_dev_ops dev_ops = {.bar_read = bar_read, .bar_write = bar_write};

static void map(unsigned index, uint64_t entry)
{
	memcpy(ram + TABLES + 0x1000 + index * 8, &entry, 8);
}

/* A 64-bit guest, its first 4 GiB mapped one to one. */
static void setup(void)
{
	uint64_t root = (TABLES + 0x1000) | 7;

	fake_reset();
	memset(ram, 0, sizeof(ram));
	memset(regs, 0, sizeof(regs));
	memset(&vm, 0, sizeof(vm));
	memset(&vcpu, 0, sizeof(vcpu));
	memset(&state, 0, sizeof(state));
	records = 0;
	vector = -1;
	ended = VM_ALIVE;
	vm.name = "t";
	CHECK_EQ(gmem_add(&vm.mem, 0, RAM, 0, ram), 0);
	vpci_init(&vm.pci);
	vpci_dev_init(&dev, &dev_ops, 1, 2, 3, 4, 5);
	dev.bar[0].len_bytes = sizeof(regs);
	CHECK_EQ(vpci_add(&vm.pci, &dev), 0);
	CHECK_EQ(dev.bar[0].base_gpa, BAR);
	vioapic_init(&vm.ioapic, &vm);
	vuart_init(&vm.uart, NULL);
	vcpu.vm = &vm;
	vm.vcpu[0] = &vcpu;
	vm.vcpu_count = 1;
	vlapic_init(&vcpu.lapic, &vcpu, 3, true, 0);
	vcpu.hv.rip = CODE;
	vcpu.hv.rflags = 0x10002;
	memcpy(ram + TABLES, &root, 8);
	for (unsigned i = 0; i < 4; i++)
		map(i, (uint64_t)i << 30 | 0x87);
	state.cr0 = BIT(31) | BIT(16) | BIT(0);
	state.cr3 = TABLES;
	state.cr4 = BIT(5);
	state.efer = BIT(10) | BIT(8);
	state.seg[HVM_CS].attr = 0xa09b;
	state.seg[HVM_SS].attr = 0xc093;
}

static uint64_t *gpr(unsigned reg)
{
	return &vcpu.hv.gpr[reg];
}

/* Runs one instruction that exits at gpa; says whether it went well. */
static bool run(const char *code, unsigned len, gpa_t gpa)
{
	memcpy(ram + vcpu.hv.rip, code, len);
	return mmio_emulate(&vcpu, gpa, true) == MMIO_DONE;
}

#define RUN(code, gpa) run(code, sizeof(code) - 1, gpa)

static void stores_and_loads(void)
{
	setup();
	*gpr(HVM_RBX) = BAR + 0x10;
	*gpr(HVM_RAX) = 0x1122334455667788;
	CHECK(RUN("\x89\x03", BAR + 0x10)); /* mov [rbx], eax */
	CHECK_EQ(records, 1);
	CHECK(record[0].write);
	CHECK_EQ(record[0].offset, 0x10);
	CHECK_EQ(record[0].width, 4);
	CHECK_EQ(record[0].value, 0x55667788);
	CHECK_EQ(vcpu.hv.rip, CODE + 2);
	CHECK_EQ(vcpu.hv.rflags, 2); /* RF is over */
	CHECK(vcpu.hv.skipped);
	CHECK(RUN("\x48\x89\x03", BAR + 0x10)); /* mov [rbx], rax */
	CHECK_EQ(record[1].width, 8);
	CHECK_EQ(record[1].value, 0x1122334455667788);
	CHECK(RUN("\x88\x63\x01", BAR + 0x11)); /* mov [rbx+1], ah */
	CHECK_EQ(record[2].offset, 0x11);
	CHECK_EQ(record[2].value, 0x77);
	CHECK(RUN("\x66\xc7\x43\x02\x34\x92", BAR + 0x12)); /* mov word [rbx+2], 0x9234 */
	CHECK_EQ(record[3].width, 2);
	CHECK_EQ(record[3].value, 0x9234);
	CHECK(RUN("\x48\xc7\x03\xfe\xff\xff\xff", BAR + 0x10)); /* mov qword [rbx], -2 */
	CHECK_EQ(record[4].value, -2ull);

	memcpy(regs + 0x10, "\x80\x91\xa2\xb3\xc4\xd5\xe6\xf7", 8);
	*gpr(HVM_RCX) = -1ull;
	CHECK(RUN("\x8b\x0b", BAR + 0x10)); /* mov ecx, [rbx]: clears the upper half */
	CHECK_EQ(*gpr(HVM_RCX), 0xb3a29180);
	*gpr(HVM_RCX) = -1ull;
	CHECK(RUN("\x66\x8b\x0b", BAR + 0x10)); /* mov cx, [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0xffffffffffff9180);
	CHECK(RUN("\x8a\x2b", BAR + 0x10)); /* mov ch, [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0xffffffffffff8080);
	CHECK(RUN("\x0f\xb6\x0b", BAR + 0x10)); /* movzx ecx, byte [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0x80);
	CHECK(RUN("\x48\x0f\xbf\x0b", BAR + 0x10)); /* movsx rcx, word [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0xffffffffffff9180);
	CHECK(RUN("\x48\x63\x0b", BAR + 0x10)); /* movsxd rcx, dword [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0xffffffffb3a29180);
	CHECK(RUN("\x0f\x38\xf0\x0b", BAR + 0x10)); /* movbe ecx, [rbx] */
	CHECK_EQ(*gpr(HVM_RCX), 0x8091a2b3);
	CHECK(RUN("\x0f\x38\xf1\x0b", BAR + 0x10)); /* movbe [rbx], ecx */
	CHECK(!memcmp(regs + 0x10, "\x80\x91\xa2\xb3", 4));
	CHECK(RUN("\xa1\x10\x00\x00\xc0\x00\x00\x00\x00", BAR + 0x10)); /* mov eax, [abs] */
	CHECK_EQ(*gpr(HVM_RAX), 0xb3a29180);
	CHECK_EQ(vector, -1);
}

static void reads_changes_writes(void)
{
	setup();
	*gpr(HVM_RBX) = BAR;
	*gpr(HVM_RAX) = 0x80000001;
	memcpy(regs, "\xff\xff\xff\x7f", 4);
	CHECK(RUN("\x01\x03", BAR)); /* add [rbx], eax: 0x7fffffff + 0x80000001 */
	CHECK_EQ(record[1].value, 0);
	CHECK_EQ(vcpu.hv.rflags, 2 | ALU_CF | ALU_ZF | ALU_PF | ALU_AF);
	CHECK(RUN("\x0b\x03", BAR)); /* or eax, [rbx] */
	CHECK_EQ(*gpr(HVM_RAX), 0x80000001);
	CHECK_EQ(vcpu.hv.rflags, 2 | ALU_SF);
	records = 0;
	CHECK(RUN("\x81\x3b\x01\x00\x00\x00", BAR)); /* cmp dword [rbx], 1: no write */
	CHECK_EQ(records, 1);
	CHECK_EQ(vcpu.hv.rflags, 2 | ALU_CF | ALU_SF | ALU_PF | ALU_AF);
	CHECK(RUN("\xf0\x48\x0f\xba\x2b\x21", BAR)); /* lock bts qword [rbx], 33 */
	CHECK_EQ(regs[4], 2);
	CHECK_EQ(vcpu.hv.rflags & ALU_CF, 0);
	CHECK(RUN("\x0f\xba\x63\x04\x01", BAR + 4)); /* bt dword [rbx+4], 1 */
	CHECK_EQ(vcpu.hv.rflags & ALU_CF, ALU_CF);
	CHECK(RUN("\xfe\x03", BAR)); /* inc byte [rbx]: CF stays */
	CHECK_EQ(regs[0], 1);
	CHECK_EQ(vcpu.hv.rflags, 2 | ALU_CF);
	CHECK(RUN("\xf7\x13", BAR)); /* not dword [rbx]: no flags */
	CHECK_EQ(regs[0], 0xfe);
	CHECK_EQ(vcpu.hv.rflags, 2 | ALU_CF);
	CHECK(RUN("\x87\x03", BAR)); /* xchg [rbx], eax */
	CHECK_EQ(*gpr(HVM_RAX), 0xfffffffe);
	CHECK(!memcmp(regs, "\x01\x00\x00\x80", 4));
	CHECK(RUN("\xf0\x0f\xc1\x03", BAR)); /* lock xadd [rbx], eax */
	CHECK_EQ(*gpr(HVM_RAX), 0x80000001);
	CHECK(!memcmp(regs, "\xff\xff\xff\x7f", 4));
	*gpr(HVM_RCX) = 0x12345678;
	CHECK(RUN("\xf0\x0f\xb1\x0b", BAR)); /* lock cmpxchg [rbx], ecx: differs */
	CHECK_EQ(*gpr(HVM_RAX), 0x7fffffff);
	CHECK_EQ(vcpu.hv.rflags & ALU_ZF, 0);
	CHECK(RUN("\xf0\x0f\xb1\x0b", BAR)); /* equal */
	CHECK(!memcmp(regs, "\x78\x56\x34\x12", 4));
	CHECK_EQ(vcpu.hv.rflags & ALU_ZF, ALU_ZF);
	CHECK(RUN("\xf6\x03\x80", BAR)); /* test byte [rbx], 0x80 */
	CHECK_EQ(vcpu.hv.rflags & ALU_ZF, ALU_ZF);
	CHECK_EQ(vector, -1);
}

/* Both APICs, each in its own way: lapic without the device lock. */
static void apics(void)
{
	setup();
	*gpr(HVM_RBX) = VLAPIC_BASE_GPA;
	CHECK(RUN("\x8b\x43\x20", VLAPIC_BASE_GPA + 0x20)); /* mov eax, [rbx+0x20]: id */
	CHECK_EQ(*gpr(HVM_RAX), 3u << 24);
	CHECK(RUN("\x8a\x43\x23", VLAPIC_BASE_GPA + 0x23)); /* its top byte */
	CHECK_EQ(*gpr(HVM_RAX) & 0xff, 3);
	*gpr(HVM_RAX) = 0x30;
	CHECK(RUN("\x89\x83\x80\x00\x00\x00", VLAPIC_BASE_GPA + 0x80)); /* task priority */
	CHECK_EQ(vcpu.lapic.tpr, 0x30);
	*gpr(HVM_RAX) = 0x50;
	CHECK(RUN("\x88\x83\x80\x00\x00\x00", VLAPIC_BASE_GPA + 0x80)); /* a byte: vanishes */
	CHECK_EQ(vcpu.lapic.tpr, 0x30);
	CHECK(RUN("\x48\x8b\x43\x20",
	          VLAPIC_BASE_GPA + 0x20)); /* mov rax: nothing between registers */
	CHECK_EQ(*gpr(HVM_RAX), 3u << 24);
	/* Moved by APIC_BASE, and gone when disabled or in x2APIC mode. */
	vcpu.lapic.base_msr = (vcpu.lapic.base_msr & 0xfff) | 0xfed00000;
	CHECK(RUN("\x8b\x43\x20", VLAPIC_BASE_GPA + 0x20));
	CHECK_EQ(*gpr(HVM_RAX), 0xffffffff);
	*gpr(HVM_RBX) = 0xfed00000;
	CHECK(RUN("\x8b\x43\x20", 0xfed00020));
	CHECK_EQ(*gpr(HVM_RAX), 3u << 24);
	vcpu.lapic.base_msr |= BIT(10);
	CHECK(RUN("\x8b\x43\x20", 0xfed00020));
	CHECK_EQ(*gpr(HVM_RAX), 0xffffffff);

	*gpr(HVM_RBX) = VIOAPIC_BASE_GPA;
	CHECK(RUN("\xc7\x03\x01\x00\x00\x00", VIOAPIC_BASE_GPA)); /* select the version */
	CHECK(RUN("\x8b\x43\x10", VIOAPIC_BASE_GPA + 0x10));
	CHECK_EQ(*gpr(HVM_RAX) >> 16, VIOAPIC_PINS - 1);
	CHECK_EQ(atomic_load(&vm.device_lock.held), 0);
}

static void nobody_there(void)
{
	setup();
	*gpr(HVM_RBX) = BAR + 0x100000;
	for (unsigned i = 0; i < 200; i++) {
		vcpu.hv.rip = CODE;
		*gpr(HVM_RAX) = 0;
		CHECK(RUN("\x8b\x03", BAR + 0x100000));
		CHECK_EQ(*gpr(HVM_RAX), 0xffffffff);
		CHECK(RUN("\x89\x03", BAR + 0x100000));
	}
	CHECK(strlen(fake_log) < 16 * 160);
	CHECK_EQ(vector, -1);
}

/* Misaligned accesses reach the device in aligned pieces; a page's end may be memory's end. */
static void splits(void)
{
	static const uint64_t offsets[] = {1, 2, 4};
	static const unsigned widths[] = {1, 2, 4};

	setup();
	*gpr(HVM_RBX) = BAR + 1;
	*gpr(HVM_RAX) = 0x8877665544332211;
	CHECK(RUN("\x48\x89\x03", BAR + 1)); /* 8 bytes at 1: 1, 2, 4, 1 */
	CHECK_EQ(records, 4);
	for (unsigned i = 0; i < 3; i++) {
		CHECK_EQ(record[i].offset, offsets[i]);
		CHECK_EQ(record[i].width, widths[i]);
	}
	CHECK(!memcmp(regs + 1, "\x11\x22\x33\x44\x55\x66\x77\x88", 8));
	CHECK(RUN("\x48\x8b\x0b", BAR + 1));
	CHECK_EQ(*gpr(HVM_RCX), 0x8877665544332211);
	/* Across the BAR's end into nothing. */
	*gpr(HVM_RBX) = BAR + 0xffe;
	records = 0;
	CHECK(RUN("\x89\x03", BAR + 0xffe));
	CHECK_EQ(records, 1);
	CHECK_EQ(record[0].width, 2);
	CHECK(RUN("\x8b\x0b", BAR + 0xffe));
	CHECK_EQ(*gpr(HVM_RCX), 0xffff2211);
	/* Across from RAM to a page that is not. */
	*gpr(HVM_RBX) = RAM - 2;
	CHECK(RUN("\x89\x03", RAM));
	CHECK_EQ(ram[RAM - 2], 0x11);
	CHECK_EQ(ram[RAM - 1], 0x22);
	CHECK_EQ(vector, -1);
}

static void strings(void)
{
	setup();
	/* rep stosd to the device, in bounded pieces. */
	*gpr(HVM_RDI) = BAR;
	*gpr(HVM_RCX) = 600;
	*gpr(HVM_RAX) = 0xabcd1234;
	CHECK(RUN("\xf3\xab", BAR));
	CHECK_EQ(*gpr(HVM_RCX), 600 - MMIO_STRING_MAX);
	CHECK_EQ(*gpr(HVM_RDI), BAR + MMIO_STRING_MAX * 4);
	CHECK_EQ(vcpu.hv.rip, CODE);
	CHECK(!vcpu.hv.skipped);
	CHECK(RUN("\xf3\xab", BAR + MMIO_STRING_MAX * 4));
	CHECK(RUN("\xf3\xab", BAR + 512 * 4));
	CHECK_EQ(*gpr(HVM_RCX), 0);
	CHECK_EQ(vcpu.hv.rip, CODE + 2);
	CHECK_EQ(records, 600);
	CHECK(!memcmp(regs + 599 * 4, "\x34\x12\xcd\xab\0\0\0\0", 8));
	/* rep movsb RAM to device, backwards; both at the same offset in their pages. */
	setup();
	memcpy(ram + 0x2000, "hello", 5);
	*gpr(HVM_RSI) = 0x2004;
	*gpr(HVM_RDI) = BAR + 4;
	*gpr(HVM_RCX) = 5;
	vcpu.hv.rflags |= BIT(10);
	CHECK(RUN("\xf3\xa4", BAR + 4));
	CHECK(!memcmp(regs, "hello", 5));
	CHECK_EQ(*gpr(HVM_RSI), 0x1fff);
	CHECK_EQ(*gpr(HVM_RDI), BAR - 1);
	CHECK_EQ(vcpu.hv.rip, CODE + 2);
	/* And back, with lods in between. */
	vcpu.hv.rflags &= ~BIT(10);
	*gpr(HVM_RSI) = BAR;
	*gpr(HVM_RDI) = 0x3000;
	CHECK(RUN("\xa5", BAR)); /* movsd */
	CHECK(!memcmp(ram + 0x3000, "hell", 4));
	*gpr(HVM_RAX) = -1ull;
	CHECK(RUN("\xac", BAR + 4)); /* lodsb */
	CHECK_EQ(*gpr(HVM_RAX), 0xffffffffffffff00 | 'o');
	CHECK_EQ(*gpr(HVM_RSI), BAR + 5);
	/* Count zero: a step, no access. */
	records = 0;
	CHECK(RUN("\xf3\xab", BAR));
	CHECK_EQ(records, 0);
	/* 32-bit addressing truncates and counts in ECX. */
	*gpr(HVM_RDI) = 0x500000000 | BAR;
	*gpr(HVM_RCX) = 0x700000002;
	CHECK(RUN("\x67\xf3\xaa", BAR));
	CHECK_EQ(records, 2);
	CHECK_EQ(*gpr(HVM_RDI), BAR + 2);
	CHECK_EQ(*gpr(HVM_RCX), 0);
	CHECK_EQ(vector, -1);
}

static void faults_belong_to_the_guest(void)
{
	setup();
	/* movsd from an unmapped page: #PF, read, nothing moved. */
	*gpr(HVM_RSI) = 0x123400000000;
	*gpr(HVM_RDI) = BAR;
	*gpr(HVM_RCX) = 3;
	CHECK(!RUN("\xf3\xa5", BAR));
	CHECK_EQ(vector, 14);
	CHECK_EQ(error_code, 0);
	CHECK_EQ(state.cr2, 0x123400000000);
	CHECK_EQ(records, 0);
	CHECK_EQ(*gpr(HVM_RCX), 3);
	CHECK_EQ(vcpu.hv.rip, CODE);
	/* Two elements fit, the third meets the end of what is mapped: they count. */
	*gpr(HVM_RSI) = 0xfffffff8;
	CHECK(!RUN("\xf3\xa5", BAR));
	CHECK_EQ(vector, 14);
	CHECK_EQ(state.cr2, 0x100000000);
	CHECK_EQ(*gpr(HVM_RCX), 1);
	CHECK_EQ(*gpr(HVM_RDI), BAR + 8);
	/* Not canonical. */
	*gpr(HVM_RSI) = 0x8000000000000000;
	CHECK(!RUN("\xa5", BAR));
	CHECK_EQ(vector, 13);
	CHECK_EQ(error_code, 0);
	/* Privilege level 3 on a supervisor page, as data and as code. */
	setup();
	state.seg[HVM_SS].attr |= 0x60;
	map(3, 3ull << 30 | 0x83);
	*gpr(HVM_RSI) = 0x2000;
	*gpr(HVM_RDI) = BAR;
	CHECK(!RUN("\xa5", BAR));
	CHECK_EQ(vector, 14);
	CHECK_EQ(error_code, 7);
	map(0, 0x83);
	CHECK(!RUN("\xa5", BAR));
	CHECK_EQ(error_code, 5);
	CHECK_EQ(state.cr2, CODE);
	/* Code whose second page has gone. */
	setup();
	vcpu.hv.rip = RAM - 1;
	CHECK(!RUN("\x89", BAR));
	CHECK_EQ(vector, 6);
	/* What we cannot carry out: #UD, and a line that shows the bytes. */
	setup();
	vcpu.hv.rip = CODE;
	CHECK(!RUN("\x0f\x29\x03", BAR)); /* movaps [rbx], xmm0 */
	CHECK_EQ(vector, 6);
	CHECK_EQ(error_code, -1);
	CHECK_EQ(vcpu.hv.rip, CODE);
	CHECK(!RUN("\x01\xd8", BAR)); /* add eax, ebx: has no memory operand (any more) */
	CHECK_EQ(vector, 6);
	CHECK_EQ(records, 0);
}

static void real_mode(void)
{
	setup();
	state.cr0 = 0;
	state.efer = 0;
	state.seg[HVM_CS].attr = 0x9b;
	state.seg[HVM_CS].base = 0x100;
	state.seg[HVM_DS].base = BAR; /* unreal */
	vcpu.hv.rip = CODE - 0x100;
	memcpy(ram + CODE, "\x67\x66\xc7\x43\x10\x78\x56\x34\x12",
	       9); /* mov dword [ebx+0x10], 0x12345678 */
	*gpr(HVM_RBX) = 0x20;
	CHECK_EQ(mmio_emulate(&vcpu, BAR + 0x30, true), MMIO_DONE);
	CHECK_EQ(record[0].offset, 0x30);
	CHECK_EQ(record[0].value, 0x12345678);
	CHECK_EQ(vcpu.hv.rip, CODE - 0x100 + 9);
	/* 16-bit string registers keep their upper parts. */
	state.seg[HVM_ES].base = BAR;
	*gpr(HVM_RDI) = 0xabcdfffe;
	vcpu.hv.rflags |= BIT(10);
	vcpu.hv.rip = CODE - 0x100;
	memcpy(ram + CODE, "\xaa", 1);
	CHECK_EQ(mmio_emulate(&vcpu, BAR + 0xfffe, true), MMIO_DONE);
	CHECK_EQ(*gpr(HVM_RDI), 0xabcdfffd);
}

/* --- ports -------------------------------------------------------------------------------- */

static void pio_set(uint16_t port, unsigned width, bool in)
{
	struct hvm_exit *exit = &vcpu.hv.exit;

	memset(exit, 0, sizeof(*exit));
	exit->reason = HVM_EXIT_PIO;
	exit->u.pio.port = port;
	exit->u.pio.width_bytes = (uint8_t)width;
	exit->u.pio.in = in;
}

static void port_in_and_out(void)
{
	setup();
	*gpr(HVM_RAX) = 0xffffffff80000800;
	pio_set(0xcf8, 4, false);
	vcpu.hv.exit.u.pio.next_rip = CODE + 1;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(vm.pci.address, 0x80000800);
	CHECK_EQ(vcpu.hv.rip, CODE + 1);
	pio_set(0xcfc, 4, true);
	vcpu.hv.exit.insn_len = 2;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(*gpr(HVM_RAX), 0x00020001);
	CHECK_EQ(vcpu.hv.rip, CODE + 3);
	/* No length given: decoded. */
	*gpr(HVM_RAX) = -1ull;
	pio_set(0xcfe, 2, true);
	memcpy(ram + CODE + 3, "\x66\xed", 2);
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(*gpr(HVM_RAX), 0xffffffffffff0002);
	CHECK_EQ(vcpu.hv.rip, CODE + 5);
	pio_set(0xcfd, 1, true);
	memcpy(ram + CODE + 5, "\xec", 1);
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(*gpr(HVM_RAX), 0xffffffffffff0000);
	CHECK_EQ(vcpu.hv.rip, CODE + 6);
	CHECK_EQ(vector, -1);
}

static void port_strings(void)
{
	setup();
	vm.pci.address = 0x80000800;
	memcpy(ram + CODE, "\xf3\x6d", 2); /* rep insd */
	*gpr(HVM_RDX) = 0xcfc;
	*gpr(HVM_RDI) = 0x2000;
	*gpr(HVM_RCX) = 300;
	pio_set(0xcfc, 4, true);
	vcpu.hv.exit.u.pio.string = true;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(*gpr(HVM_RCX), 300 - MMIO_STRING_MAX);
	CHECK_EQ(vcpu.hv.rip, CODE);
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(vcpu.hv.rip, CODE + 2);
	CHECK(!memcmp(ram + 0x2000 + 299 * 4, "\1\0\2\0\0\0\0\0", 8));
	/* outsb reaches the UART's scratch register. */
	memcpy(ram + CODE + 2, "\x6e", 1);
	ram[0x3000] = 0x5a;
	*gpr(HVM_RDX) = VUART_PORT + 7;
	*gpr(HVM_RSI) = 0x3000;
	pio_set(VUART_PORT + 7, 1, false);
	vcpu.hv.exit.u.pio.string = true;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(vm.uart.scr, 0x5a);
	/* A port is not read when the guest has a page fault to take first. */
	CHECK(vuart_input(&vm.uart, 'x'));
	memcpy(ram + CODE, "\xf3\x6c", 2); /* rep insb */
	vcpu.hv.rip = CODE;
	*gpr(HVM_RDX) = VUART_PORT;
	*gpr(HVM_RDI) = 0x7000000000;
	*gpr(HVM_RCX) = 1;
	pio_set(VUART_PORT, 1, true);
	vcpu.hv.exit.u.pio.string = true;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_FAULT);
	CHECK_EQ(vector, 14);
	CHECK_EQ(error_code, 2);
	CHECK_EQ(state.cr2, 0x7000000000);
	CHECK_EQ(*gpr(HVM_RCX), 1);
	*gpr(HVM_RDI) = 0x2000;
	CHECK_EQ(pio_emulate(&vcpu), MMIO_DONE);
	CHECK_EQ(ram[0x2000], 'x');
}

/* --- arithmetic, against the processor this test runs on ---------------------------------- */

#define NATIVE(insn, suffix, type)                                                                 \
	__asm__ volatile("pushq %[f]\n\tpopfq\n\t" insn suffix "\n\tpushfq\n\tpopq %[f]"           \
	                 : [f] "+r"(flags), [d] "+r"(*(type *)&d)                                  \
	                 : [s] "r"((type)s)                                                        \
	                 : "cc", "memory")

#define NATIVE_WIDTHS(insn, two)                                                                   \
	do {                                                                                       \
		if (width == 1)                                                                    \
			NATIVE(insn "b", two, uint8_t);                                            \
		else if (width == 2)                                                               \
			NATIVE(insn "w", two, uint16_t);                                           \
		else if (width == 4)                                                               \
			NATIVE(insn "l", two, uint32_t);                                           \
		else                                                                               \
			NATIVE(insn "q", two, uint64_t);                                           \
	} while (0)

static uint64_t native(unsigned op, uint64_t d, uint64_t s, unsigned width, uint64_t *rflags)
{
	uint64_t flags = *rflags;

	d = insn_trunc(d, width);
	switch (op) {
	case INSN_ADD: NATIVE_WIDTHS("add", " %[s], %[d]"); break;
	case INSN_OR: NATIVE_WIDTHS("or", " %[s], %[d]"); break;
	case INSN_ADC: NATIVE_WIDTHS("adc", " %[s], %[d]"); break;
	case INSN_SBB: NATIVE_WIDTHS("sbb", " %[s], %[d]"); break;
	case INSN_AND: NATIVE_WIDTHS("and", " %[s], %[d]"); break;
	case INSN_SUB: NATIVE_WIDTHS("sub", " %[s], %[d]"); break;
	case INSN_XOR: NATIVE_WIDTHS("xor", " %[s], %[d]"); break;
	case INSN_CMP: NATIVE_WIDTHS("cmp", " %[s], %[d]"); break;
	case INSN_TEST: NATIVE_WIDTHS("test", " %[s], %[d]"); break;
	case INSN_INC: NATIVE_WIDTHS("inc", " %[d]"); break;
	case INSN_DEC: NATIVE_WIDTHS("dec", " %[d]"); break;
	case INSN_NOT: NATIVE_WIDTHS("not", " %[d]"); break;
	case INSN_NEG: NATIVE_WIDTHS("neg", " %[d]"); break;
	}
	*rflags = flags;
	return insn_trunc(d, width);
}

static void arithmetic_as_the_processor_does(void)
{
	static const unsigned ops_tested[] = {INSN_ADD, INSN_OR,  INSN_ADC, INSN_SBB,  INSN_AND,
	                                      INSN_SUB, INSN_XOR, INSN_CMP, INSN_TEST, INSN_INC,
	                                      INSN_DEC, INSN_NOT, INSN_NEG};
	static const uint64_t edges[] = {0,          1,          2,         0x7f,       0x80,
	                                 0xff,       0x7fff,     0x8000,    0xffff,     0x7fffffff,
	                                 0x80000000, 0xffffffff, INT64_MAX, 1ull << 63, UINT64_MAX,
	                                 0x0f,       0x10};

	for (unsigned o = 0; o < ARRAY_LEN(ops_tested); o++) {
		unsigned op = ops_tested[o];
		bool logic = op == INSN_OR || op == INSN_AND || op == INSN_XOR || op == INSN_TEST;
		uint64_t mask = ALU_FLAGS & ~(logic ? ALU_AF : 0); /* undefined there */

		for (unsigned n = 0; n < ARRAY_LEN(edges) * ARRAY_LEN(edges) * 8; n++) {
			uint64_t d = edges[n / 8 % ARRAY_LEN(edges)],
			         s = edges[n / 8 / ARRAY_LEN(edges)];
			unsigned width = 1u << (n & 3);
			uint64_t before = n & 4 ? 0x202 | ALU_FLAGS : 0x202, ours = before,
			         theirs = before;
			uint64_t expect = native(op, d, s, width, &theirs);
			uint64_t result = op >= INSN_INC && op <= INSN_NEG
			                          ? alu_unary(op, d, width, &ours)
			                          : alu_binary(op, d, s, width, &ours);

			if (op != INSN_CMP && op != INSN_TEST)
				CHECK_EQ(result, expect);
			CHECK_EQ(ours & mask, theirs & mask);
			if (test_case_failed) {
				printf("  op %u, %#llx, %#llx, width %u\n", op,
				       (unsigned long long)d, (unsigned long long)s, width);
				return;
			}
		}
	}
}

TESTS(T(stores_and_loads), T(reads_changes_writes), T(apics), T(nobody_there), T(splits),
      T(strings), T(faults_belong_to_the_guest), T(real_mode), T(port_in_and_out), T(port_strings),
      T(arithmetic_as_the_processor_does))
