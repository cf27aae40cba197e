#include "arch/x86/insn.h"

#include "arch/x86/hvm.h"
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define M16 INSN_MODE_16
#define M32 INSN_MODE_32
#define M64 INSN_MODE_64

#define SLOT 32u

/* Flags of an expectation. */
#define MEM   1u /* memory operand */
#define DST   2u /* which comes first */
#define IMM   4u
#define HIGH  8u
#define REP   16u
#define LOCK  32u
#define STORE 64u /* the quick path takes it */

struct expect {
	enum insn_mode mode;
	const char *text;
	uint8_t op, width_bytes, reg_bytes, reg;
	unsigned flags;
	uint64_t imm;
	uint64_t ea; /* with the registers of gprs() and next_rip 0x1000 */
	uint8_t seg;
};

/* Register n holds (n + 1) * 0x100000010. */
static const uint64_t *gprs(void)
{
	static uint64_t gpr[16];

	for (unsigned i = 0; i < 16; i++)
		gpr[i] = (i + 1) * 0x100000010ull;
	return gpr;
}

#define R(n)   (((n) + 1) * 0x100000010ull)
#define R32(n) (((n) + 1) * 0x10ull)
#define DS     HVM_DS
#define SS     HVM_SS
#define ES     HVM_ES

static const struct expect table[] = {
        /* MOV, all forms and widths. */
        {M64, "mov [rbx], al", INSN_MOV, 1, 1, 0, MEM | DST | STORE, 0, R(3), DS},
        {M64, "mov [rbx], ah", INSN_MOV, 1, 1, 0, MEM | DST | HIGH | STORE, 0, R(3), DS},
        {M64, "mov [rbx], sil", INSN_MOV, 1, 1, 6, MEM | DST | STORE, 0, R(3), DS},
        {M64, "mov [rbp+4], cx", INSN_MOV, 2, 2, 1, MEM | DST | STORE, 0, R(5) + 4, SS},
        {M64, "mov [r13], r9d", INSN_MOV, 4, 4, 9, MEM | DST | STORE, 0, R(13), DS},
        {M64, "mov [r12+rax*8-0x80000000], r15", INSN_MOV, 8, 8, 15, MEM | DST | STORE, 0,
         R(12) + R(0) * 8 - 0x80000000ull, DS},
        {M64, "mov [rsp+r12*2+1], edx", INSN_MOV, 4, 4, 2, MEM | DST | STORE, 0,
         R(4) + R(12) * 2 + 1, SS},
        {M64, "mov eax, [rel $+22]", INSN_MOV, 4, 4, 0, MEM, 0, 0x1010, DS},
        {M64, "mov [rcx*4+0x12345678], rax", INSN_MOV, 8, 8, 0, MEM | DST | STORE, 0,
         R(1) * 4 + 0x12345678, DS},
        {M64, "mov eax, [abs 0x7fffffff]", INSN_MOV, 4, 4, 0, MEM, 0, 0x7fffffff, DS},
        {M64, "mov eax, [abs dword 0xfee00020]", INSN_MOV, 4, 4, 0, MEM, 0, 0xfffffffffee00020ull,
         DS},
        {M64, "a32 mov eax, [ebx+ecx]", INSN_MOV, 4, 4, 0, MEM, 0, R32(3) + R32(1), DS},
        {M64, "mov rax, [gs:rdi]", INSN_MOV, 8, 8, 0, MEM, 0, R(7), HVM_GS},
        {M64, "mov dil, [r8]", INSN_MOV, 1, 1, 7, MEM, 0, R(8), DS},
        {M64, "mov byte [rdx], 0x80", INSN_MOV, 1, 1, 0, MEM | DST | IMM | STORE, -0x80ull, R(2),
         DS},
        {M64, "mov word [rdx+8], 0x8001", INSN_MOV, 2, 2, 0, MEM | DST | IMM | STORE, -0x7fffull,
         R(2) + 8, DS},
        {M64, "mov dword [rdx+0x400], 0x80000001", INSN_MOV, 4, 4, 0, MEM | DST | IMM | STORE,
         -0x7fffffffull, R(2) + 0x400, DS},
        {M64, "mov qword [rdx], -2", INSN_MOV, 8, 8, 0, MEM | DST | IMM | STORE, -2ull, R(2), DS},
        {M64, "mov al, [abs qword 0x123456789abcdef0]", INSN_MOV, 1, 1, 0, MEM, 0,
         0x123456789abcdef0ull, DS},
        {M64, "mov [abs qword 0x123456789abcdef0], eax", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0,
         0x123456789abcdef0ull, DS},
        {M64, "db 0x67, 0xa3, 0x20, 0, 0xe0, 0xfe", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0,
         0xfee00020, DS},
        {M64, "db 0x67, 0x48, 0xa1, 0x20, 0, 0xe0, 0xfe", INSN_MOV, 8, 8, 0, MEM, 0, 0xfee00020,
         DS},
        {M32, "mov [0xfee000b0], eax", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0, 0xfee000b0, DS},
        {M32, "mov ax, [0xfee000b0]", INSN_MOV, 2, 2, 0, MEM, 0, 0xfee000b0, DS},
        {M32, "mov [0xfee000b0], ecx", INSN_MOV, 4, 4, 1, MEM | DST | STORE, 0, 0xfee000b0, DS},
        {M32, "mov [esp], bh", INSN_MOV, 1, 1, 3, MEM | DST | HIGH | STORE, 0, R32(4), SS},
        {M32, "mov dword [fs:esi], 7", INSN_MOV, 4, 4, 0, MEM | DST | IMM | STORE, 7, R32(6),
         HVM_FS},
        {M32, "mov word [ebp+esi*4], 0x1234", INSN_MOV, 2, 2, 0, MEM | DST | IMM | STORE, 0x1234,
         R32(5) + R32(6) * 4, SS},
        {M32, "a16 mov [bx+si+0x10], dx", INSN_MOV, 2, 2, 2, MEM | DST | STORE, 0,
         R32(3) + R32(6) + 0x10, DS},
        {M32, "a16 mov [0x1234], eax", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0, 0x1234, DS},
        {M16, "mov [bp+di], al", INSN_MOV, 1, 1, 0, MEM | DST | STORE, 0, R32(5) + R32(7), SS},
        {M16, "mov [es:di-2], ax", INSN_MOV, 2, 2, 0, MEM | DST | STORE, 0, R32(7) - 2, ES},
        {M16, "mov [bx+0x1000], eax", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0, R32(3) + 0x1000, DS},
        {M16, "mov word [0x8000], 0xffff", INSN_MOV, 2, 2, 0, MEM | DST | IMM | STORE, -1ull,
         0x8000, DS},
        {M16, "mov dword [0x8000], 1", INSN_MOV, 4, 4, 0, MEM | DST | IMM | STORE, 1, 0x8000, DS},
        {M16, "mov [0x9000], al", INSN_MOV, 1, 1, 0, MEM | DST | STORE, 0, 0x9000, DS},
        {M16, "a32 mov [ecx+0x12345], dx", INSN_MOV, 2, 2, 2, MEM | DST | STORE, 0,
         R32(1) + 0x12345, DS},
        {M64, "movnti [rdi], rax", INSN_MOV, 8, 8, 0, MEM | DST, 0, R(7), DS},
        {M32, "movnti [edi], edx", INSN_MOV, 4, 4, 2, MEM | DST, 0, R32(7), DS},
        /* Widening. */
        {M64, "movzx eax, byte [rbx]", INSN_MOVZX, 1, 4, 0, MEM, 0, R(3), DS},
        {M64, "movzx r9, word [rbx]", INSN_MOVZX, 2, 8, 9, MEM, 0, R(3), DS},
        {M64, "movsx cx, byte [rbx]", INSN_MOVSX, 1, 2, 1, MEM, 0, R(3), DS},
        {M64, "movsx rsi, word [rbx]", INSN_MOVSX, 2, 8, 6, MEM, 0, R(3), DS},
        {M64, "movsxd r10, dword [rbx]", INSN_MOVSX, 4, 8, 10, MEM, 0, R(3), DS},
        {M32, "movzx esp, byte [ebx]", INSN_MOVZX, 1, 4, 4, MEM, 0, R32(3), DS},
        {M64, "movbe eax, [rsi]", INSN_MOVBE, 4, 4, 0, MEM, 0, R(6), DS},
        {M64, "movbe [rsi], r8", INSN_MOVBE, 8, 8, 8, MEM | DST, 0, R(6), DS},
        {M32, "movbe [esi], cx", INSN_MOVBE, 2, 2, 1, MEM | DST, 0, R32(6), DS},
        /* Arithmetic. */
        {M64, "add [rbx], eax", INSN_ADD, 4, 4, 0, MEM | DST, 0, R(3), DS},
        {M64, "or rcx, [rbx]", INSN_OR, 8, 8, 1, MEM, 0, R(3), DS},
        {M64, "lock and dword [rbx], 0x7f", INSN_AND, 4, 4, 4, MEM | DST | IMM | LOCK, 0x7f, R(3),
         DS},
        {M64, "xor byte [rbx+1], 0xff", INSN_XOR, 1, 1, 6, MEM | DST | IMM, -1ull, R(3) + 1, DS},
        {M64, "sub word [rbx], 0x1234", INSN_SUB, 2, 2, 5, MEM | DST | IMM, 0x1234, R(3), DS},
        {M64, "cmp qword [rel $+16], -1", INSN_CMP, 8, 8, 7, MEM | DST | IMM, -1ull, 0x1008, DS},
        {M64, "cmp dword [rel $+18], 0x12345678", INSN_CMP, 4, 4, 7, MEM | DST | IMM, 0x12345678,
         0x1008, DS},
        {M64, "adc ch, [rbx]", INSN_ADC, 1, 1, 1, MEM | HIGH, 0, R(3), DS},
        {M32, "sbb [ebx], edi", INSN_SBB, 4, 4, 7, MEM | DST, 0, R32(3), DS},
        {M64, "test [rbx], edx", INSN_TEST, 4, 4, 2, MEM | DST, 0, R(3), DS},
        {M64, "test byte [rbx], 1", INSN_TEST, 1, 1, 0, MEM | DST | IMM, 1, R(3), DS},
        {M64, "test dword [rbx], 0x10000", INSN_TEST, 4, 4, 0, MEM | DST | IMM, 0x10000, R(3), DS},
        {M64, "not dword [rbx]", INSN_NOT, 4, 4, 2, MEM | DST, 0, R(3), DS},
        {M64, "neg qword [rbx]", INSN_NEG, 8, 8, 3, MEM | DST, 0, R(3), DS},
        {M64, "lock inc word [rbx]", INSN_INC, 2, 2, 0, MEM | DST | LOCK, 0, R(3), DS},
        {M64, "dec byte [rbx]", INSN_DEC, 1, 1, 1, MEM | DST, 0, R(3), DS},
        {M64, "xchg [rbx], rbp", INSN_XCHG, 8, 8, 5, MEM | DST, 0, R(3), DS},
        {M64, "lock xadd [rbx], eax", INSN_XADD, 4, 4, 0, MEM | DST | LOCK, 0, R(3), DS},
        {M64, "lock cmpxchg [rbx], r14d", INSN_CMPXCHG, 4, 4, 14, MEM | DST | LOCK, 0, R(3), DS},
        {M64, "bt dword [rbx], 31", INSN_BT, 4, 4, 4, MEM | DST | IMM, 31, R(3), DS},
        {M64, "lock bts qword [rbx], 63", INSN_BTS, 8, 8, 5, MEM | DST | IMM | LOCK, 63, R(3), DS},
        {M64, "btr word [rbx], 3", INSN_BTR, 2, 2, 6, MEM | DST | IMM, 3, R(3), DS},
        {M32, "btc dword [ebx], 7", INSN_BTC, 4, 4, 7, MEM | DST | IMM, 7, R32(3), DS},
        /* Strings. */
        {M64, "rep movsd", INSN_MOVS, 4, 4, 0, MEM | DST | REP, 0, R(6), DS},
        {M64, "movsq", INSN_MOVS, 8, 8, 0, MEM | DST, 0, R(6), DS},
        {M64, "fs movsb", INSN_MOVS, 1, 1, 0, MEM | DST, 0, R(6), HVM_FS},
        {M64, "rep stosd", INSN_STOS, 4, 4, 0, MEM | DST | REP, 0, R(7), ES},
        {M32, "cs stosb", INSN_STOS, 1, 1, 0, MEM | DST, 0, R32(7), ES},
        {M64, "lodsw", INSN_LODS, 2, 2, 0, MEM, 0, R(6), DS},
        {M16, "rep insw", INSN_INS, 2, 2, 0, MEM | DST | REP, 0, R32(7), ES},
        {M32, "es outsd", INSN_OUTS, 4, 4, 0, MEM, 0, R32(6), ES},
        {M64, "repe cmpsb", INSN_CMPS, 1, 1, 0, MEM | REP, 0, R(6), DS},
        {M64, "scasd", INSN_SCAS, 4, 4, 0, MEM, 0, R(7), ES},
        /* No memory. */
        {M64, "in al, 0x71", INSN_IN, 1, 1, 0, IMM, 0x71, 0, 0},
        {M64, "in eax, dx", INSN_IN, 4, 4, 0, 0, 0, 0, 0},
        {M64, "out 0x80, al", INSN_OUT, 1, 1, 0, IMM, 0x80, 0, 0},
        {M16, "out dx, ax", INSN_OUT, 2, 2, 0, 0, 0, 0, 0},
        {M64, "mov cr8, r9", INSN_MOV_TO_CR, 8, 8, 9, 0, 0, 0, 0},
        {M64, "mov rdx, cr8", INSN_MOV_FROM_CR, 8, 8, 2, 0, 0, 0, 0},
        {M32, "db 0xf0, 0x0f, 0x22, 0xc3", INSN_MOV_TO_CR, 4, 4, 3, 0, 0, 0, 0},
        {M64, "mov eax, ebx", INSN_MOV, 4, 4, 3, DST, 0, 0, 0},
        {M64, "cpuid", INSN_CPUID, 0, 0, 0, 0, 0, 0, 0},
        {M64, "hlt", INSN_HLT, 0, 0, 0, 0, 0, 0, 0},
        {M64, "rdmsr", INSN_RDMSR, 0, 0, 0, 0, 0, 0, 0},
        {M64, "wrmsr", INSN_WRMSR, 0, 0, 0, 0, 0, 0, 0},
        {M64, "xsetbv", INSN_XSETBV, 2, 2, 2, 0, 0, 0, 0},
        {M64, "vmcall", INSN_VMCALL, 2, 2, 0, 0, 0, 0, 0},
        {M64, "vmmcall", INSN_VMMCALL, 2, 2, 3, 0, 0, 0, 0},
        {M64, "wbinvd", INSN_WBINVD, 0, 0, 0, 0, 0, 0, 0},
        {M64, "invd", INSN_INVD, 0, 0, 0, 0, 0, 0, 0},
        {M64, "rdtsc", INSN_RDTSC, 0, 0, 0, 0, 0, 0, 0},
        {M64, "rdtscp", INSN_RDTSCP, 2, 2, 7, 0, 0, 0, 0},
        {M64, "pause", INSN_PAUSE, 0, 0, 0, REP, 0, 0, 0},
        {M64, "monitor", INSN_MONITOR, 2, 2, 1, 0, 0, 0, 0},
        {M64, "mwait", INSN_MWAIT, 2, 2, 1, 0, 0, 0, 0},
        {M64, "vmrun", INSN_VIRT, 2, 2, 3, 0, 0, 0, 0},
        {M64, "stgi", INSN_VIRT, 2, 2, 3, 0, 0, 0, 0},
        {M64, "invlpga", INSN_VIRT, 2, 2, 3, 0, 0, 0, 0},
        {M64, "vmlaunch", INSN_VIRT, 2, 2, 0, 0, 0, 0, 0},
        {M64, "vmptrld [rax]", INSN_VIRT, 8, 8, 6, MEM, 0, R(0), DS},
        {M64, "vmread rax, rbx", INSN_VIRT, 8, 8, 3, 0, 0, 0, 0},
        {M64, "vmxon [rax+0x12345]", INSN_VIRT, 8, 8, 6, MEM | REP, 0, R(0) + 0x12345, DS},
        {M64, "invept rax, [rcx]", INSN_VIRT, 8, 8, 0, MEM, 0, R(1), DS},
        {M64, "invpcid rax, [rcx]", INSN_INVPCID, 8, 8, 0, MEM, 0, R(1), DS},
        {M64, "invlpg [rax]", INSN_INVLPG, 2, 2, 7, MEM, 0, R(0), DS},
        /* Prefix rules: REX counts only right before the opcode, the last repeat counts. */
        {M64, "db 0x48, 0x66, 0x89, 0x03", INSN_MOV, 2, 2, 0, MEM | DST | STORE, 0, R(3), DS},
        {M64, "db 0x66, 0x48, 0x89, 0x03", INSN_MOV, 8, 8, 0, MEM | DST | STORE, 0, R(3), DS},
        {M64, "db 0x66, 0x48, 0xc7, 0x03, 1, 2, 3, 4", INSN_MOV, 8, 8, 0, MEM | DST | IMM | STORE,
         0x04030201, R(3), DS},
        {M64, "db 0x2e, 0x89, 0x03", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0, R(3), DS},
        {M64, "db 0x64, 0x2e, 0x89, 0x03", INSN_MOV, 4, 4, 0, MEM | DST | STORE, 0, R(3), HVM_FS},
        {M64, "db 0xf2, 0xf3, 0xa4", INSN_MOVS, 1, 1, 0, MEM | DST | REP, 0, R(6), DS},
        {M64, "db 0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x89,0x03",
         INSN_MOV, 2, 2, 0, MEM | DST | STORE, 0, R(3), DS},
        /* Refused: op 0xff. */
        {M64, "db 0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x66,0x89,0x03",
         0xff, 0, 0, 0, 0, 0, 0, 0},
        {M64, "db 0xf0, 0x89, 0x03", 0xff, 0, 0, 0, 0, 0, 0, 0},    /* lock mov */
        {M64, "db 0xf0, 0x01, 0xc3", 0xff, 0, 0, 0, 0, 0, 0, 0},    /* lock add ebx, eax */
        {M64, "db 0xf0, 0x03, 0x03", 0xff, 0, 0, 0, 0, 0, 0, 0},    /* lock add eax, [rbx] */
        {M64, "db 0xf0, 0x83, 0x3b, 0", 0xff, 0, 0, 0, 0, 0, 0, 0}, /* lock cmp */
        {M64, "db 0xc6, 0x48, 0, 0", 0xff, 0, 0, 0, 0, 0, 0, 0},    /* c6 /1 */
        {M64, "db 0x82, 0x03, 0", 0xff, 0, 0, 0, 0, 0, 0, 0},
        {M32, "movaps [ebx], xmm0", 0xff, 0, 0, 0, 0, 0, 0, 0},
        {M64, "jmp $", 0xff, 0, 0, 0, 0, 0, 0, 0},
        {M64, "mul dword [rbx]", 0xff, 0, 0, 0, 0, 0, 0, 0},
};

static uint8_t image[ARRAY_LEN(table)][SLOT]; /* a length byte, then the instruction */

/* One run of nasm for the whole table. */
static const char *assemble(void)
{
	char dir[] = "/tmp/insn-XXXXXX", path[64], cmd[192];
	const char *why = NULL;
	FILE *file;

	if (system("command -v nasm >/dev/null 2>&1"))
		return "nasm is not installed";
	if (!mkdtemp(dir))
		return "no temporary directory";
	snprintf(path, sizeof(path), "%s/t.asm", dir);
	file = fopen(path, "w");
	for (unsigned i = 0; i < ARRAY_LEN(table); i++)
		fprintf(file, "bits %u\ndb e%u-s%u\ns%u: %s\ne%u: times %u-(e%u-s%u) db 0xcc\n",
		        16u << table[i].mode, i, i, i, table[i].text, i, SLOT - 1, i, i);
	fclose(file);
	snprintf(cmd, sizeof(cmd), "nasm -w-all -f bin -o %s/t.bin %s/t.asm", dir, dir);
	if (system(cmd))
		why = "";
	snprintf(path, sizeof(path), "%s/t.bin", dir);
	file = fopen(path, "r");
	if (!file || fread(image, 1, sizeof(image), file) != sizeof(image))
		why = "";
	if (file)
		fclose(file);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	CHECK_EQ(system(cmd), 0);
	return why;
}

static void check_one(const struct expect *e, const uint8_t *bytes, unsigned len)
{
	struct insn insn;
	int err = insn_decode(bytes, INSN_LEN_MAX, e->mode, &insn);
	uint64_t ea_mask = insn.addr_bytes == 2   ? 0xffff
	                   : insn.addr_bytes == 4 ? 0xffffffff
	                                          : UINT64_MAX;

	CHECK_EQ(insn_len_store(bytes, INSN_LEN_MAX, e->mode), e->flags & STORE ? len : 0);
	if (e->op == 0xff) {
		CHECK_EQ(err, -EINVAL);
		return;
	}
	CHECK_EQ(err, 0);
	CHECK_EQ(insn.op, e->op);
	CHECK_EQ(insn.len, len);
	CHECK_EQ(insn.width_bytes, e->width_bytes);
	CHECK_EQ(insn.mem, !!(e->flags & MEM));
	CHECK_EQ(insn.mem_dst, !!(e->flags & DST));
	CHECK_EQ(insn.has_imm, !!(e->flags & IMM));
	CHECK_EQ(insn.reg_high, !!(e->flags & HIGH));
	CHECK_EQ(insn.rep, !!(e->flags & REP));
	if (strncmp(e->text, "db 0xf0", 7))
		CHECK_EQ(insn.lock, !!(e->flags & LOCK));
	CHECK_EQ(insn.imm, e->imm);
	if (e->width_bytes && !(e->flags & IMM)) {
		CHECK_EQ(insn.reg_bytes, e->reg_bytes);
		CHECK_EQ(insn.reg, e->reg);
	}
	if (e->flags & MEM) {
		CHECK_EQ(insn_ea(&insn, gprs(), 0x1000), e->ea & ea_mask);
		CHECK_EQ(insn.seg, e->seg);
	}
	/* Every shorter piece asks for more, and never looks past what it was given. */
	for (unsigned n = 0; n < len; n++) {
		uint8_t *piece = malloc(n ? n : 1);

		memcpy(piece, bytes, n);
		CHECK_EQ(insn_decode(piece, n, e->mode, &insn), -EAGAIN);
		CHECK_EQ(insn_len_store(piece, n, e->mode), 0);
		free(piece);
	}
}

static void decodes_what_nasm_writes(void)
{
	const char *why = assemble();

	if (why && *why)
		SKIP(why);
	CHECK(!why);
	for (unsigned i = 0; i < ARRAY_LEN(table) && !why; i++) {
		int before = test_case_failed;

		test_case_failed = 0;
		check_one(&table[i], image[i] + 1, image[i][0]);
		if (test_case_failed)
			printf("  ... in bits %u: %s\n", 16u << table[i].mode, table[i].text);
		test_case_failed |= before;
	}
}

static uint32_t seed = 12345;

static uint8_t rnd(void)
{
	seed = seed * 1664525u + 1013904223u;
	return (uint8_t)(seed >> 16);
}

/* Random bytes, with prefixes and 0F more often than chance gives them. */
static unsigned random_bytes(uint8_t *bytes)
{
	static const uint8_t often[] = {0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e,
	                                0x64, 0x48, 0x41, 0x0f, 0x4d, 0x44};
	unsigned len = rnd() % 20, head = rnd() % 4;

	for (unsigned i = 0; i < len; i++)
		bytes[i] = i < head ? often[rnd() % sizeof(often)] : rnd();
	return len;
}

static void random_bytes_stay_inside(void)
{
	unsigned good = 0, stores = 0;

	for (unsigned i = 0; i < 300000; i++) {
		enum insn_mode mode = i % 3;
		uint8_t bytes[20], *exact;
		unsigned len = random_bytes(bytes), quick;
		struct insn insn;
		int err;

		exact = malloc(len ? len : 1);
		memcpy(exact, bytes, len);
		err = insn_decode(exact, len, mode, &insn);
		quick = insn_len_store(exact, len, mode);
		CHECK(err == 0 || err == -EINVAL || (err == -EAGAIN && len < INSN_LEN_MAX));
		if (!err) {
			good++;
			CHECK(insn.len && insn.len <= len && insn.len <= INSN_LEN_MAX);
			CHECK(insn.reg < 16 && insn.base < 16 && insn.index < 16 &&
			      insn.seg <= HVM_GS);
			CHECK(insn.width_bytes <= 8 && insn.reg_bytes <= 8);
		}
		/* The quick path says less, but never something else. */
		if (quick) {
			stores++;
			CHECK_EQ(err, 0);
			CHECK_EQ(quick, insn.len);
			CHECK(insn.op == INSN_MOV && insn.mem && insn.mem_dst);
		} else if (!err && insn.op == INSN_MOV && insn.mem && insn.mem_dst && !insn.lock &&
		           !insn.rep && !insn.repne) {
			CHECK(memchr(exact, 0xc3, insn.len)); /* MOVNTI */
		}
		free(exact);
		if (test_case_failed)
			return;
	}
	CHECK(good > 30000);
	CHECK(stores > 1000);
}

#define CROSS 1500u

static bool is_prefix_alone(const char *text)
{
	static const char *const names[] = {"rex",     "data16", "data32",   "addr32",  "addr16",
	                                    "repz",    "repnz",  "rep",      "lock",    "fs",
	                                    "gs",      "cs",     "ds",       "es",      "ss",
	                                    "notrack", "bnd",    "xacquire", "xrelease"};
	char word[32];
	int used = 0;

	while (sscanf(text, "%31s%n", word, &used) == 1) {
		bool prefix = false;

		for (unsigned i = 0; i < ARRAY_LEN(names); i++)
			prefix |= !strncmp(word, names[i], strlen(names[i])) &&
			          (!word[strlen(names[i])] || word[strlen(names[i])] == '.');
		if (!prefix)
			return false;
		text += used;
	}
	return true;
}

/* Where objdump, too, sees one instruction, it is as long as we say. */
static void cross_check(enum insn_mode mode, unsigned *compared)
{
	static const char *const machine[] = {"i8086", "i386", "i386:x86-64"};
	static uint8_t out[CROSS][SLOT], lens[CROSS];
	static unsigned insns[CROSS], end[CROSS];
	static bool bad[CROSS];
	char path[] = "/tmp/insn-XXXXXX", cmd[160], line[256];
	int fd = mkstemp(path);
	FILE *pipe;

	memset(out, 0x90, sizeof(out));
	memset(insns, 0, sizeof(insns));
	memset(bad, 0, sizeof(bad));
	for (unsigned n = 0; n < CROSS;) {
		uint8_t bytes[20];
		unsigned len = random_bytes(bytes);
		struct insn insn;

		if (insn_decode(bytes, len, mode, &insn))
			continue;
		lens[n] = insn.len;
		memcpy(out[n++], bytes, insn.len);
	}
	CHECK(write(fd, out, sizeof(out)) == (ssize_t)sizeof(out));
	close(fd);
	snprintf(cmd, sizeof(cmd), "objdump -D -b binary -m %s --no-show-raw-insn %s",
	         machine[mode], path);
	pipe = popen(cmd, "r");
	while (pipe && fgets(line, sizeof(line), pipe)) {
		unsigned long at;
		int used = 0;
		unsigned slot, offset;

		if (sscanf(line, " %lx:%n", &at, &used) != 1 || !used || at >= sizeof(out))
			continue;
		slot = (unsigned)(at / SLOT);
		offset = (unsigned)(at % SLOT);
		if (offset < lens[slot]) {
			bad[slot] |= strstr(line, "(bad)") != NULL;
			insns[slot] += !is_prefix_alone(line + used);
		} else if (offset == lens[slot]) {
			end[slot] = offset;
		}
	}
	if (pipe)
		pclose(pipe);
	unlink(path);
	for (unsigned i = 0; i < CROSS; i++) {
		if (bad[i])
			continue;
		++*compared;
		if (insns[i] == 1 && end[i] == lens[i])
			continue;
		printf("  %s, we say %u:", machine[mode], lens[i]);
		for (unsigned b = 0; b < 16; b++)
			printf(" %02x", out[i][b]);
		printf(" (%u instructions, end %u)\n", insns[i], end[i]);
		CHECK(!"objdump agrees");
	}
}

static void lengths_agree_with_objdump(void)
{
	unsigned compared = 0;

	if (system("command -v objdump >/dev/null 2>&1"))
		SKIP("objdump is not installed");
	for (enum insn_mode mode = INSN_MODE_16; mode <= INSN_MODE_64; mode++)
		cross_check(mode, &compared);
	CHECK(compared > CROSS);
}

static void truncates_and_extends(void)
{
	CHECK_EQ(insn_trunc(0x1122334455667788, 1), 0x88);
	CHECK_EQ(insn_trunc(0x1122334455667788, 4), 0x55667788);
	CHECK_EQ(insn_trunc(0x1122334455667788, 8), 0x1122334455667788);
	CHECK_EQ(insn_sign_extend(0x80, 1), 0xffffffffffffff80);
	CHECK_EQ(insn_sign_extend(0x17fff, 2), 0x7fff);
	CHECK_EQ(insn_sign_extend(0x8000000000000000, 8), 0x8000000000000000);
}

TESTS(T(decodes_what_nasm_writes), T(random_bytes_stay_inside), T(lengths_agree_with_objdump),
      T(truncates_and_extends))
