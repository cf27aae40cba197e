/*
 * The instruction decoder: a length is between 1 and 15; the same bytes decode alike whatever
 * follows them, and shorter ones ask for more; no field leaves its range; and the kick's quick path
 * says what the whole decoder says.
 */
#include "tests/fuzz/fuzz.h"

#include "arch/x86/hvm.h"
#include "arch/x86/insn.h"

const char fuzz_name[] = "insn";
const unsigned fuzz_rounds = 60000;

/* The mode, then the instruction. */
size_t fuzz_seed(unsigned index, uint8_t *out)
{
	static const struct {
		uint8_t len;
		uint8_t bytes[16];
	} seeds[] = {
	        {4, {2, 0x66, 0x89, 0x0b}}, /* mov [rbx], cx */
	        {9,
	         {2, 0x4b, 0x89, 0x84, 0xec, 0x00, 0x00, 0x00,
	          0x80}},                                     /* mov [r12+r13*8+d32], rax */
	        {8, {2, 0xc7, 0x02, 0x01, 0x00, 0x00, 0x00}}, /* mov dword [rdx], 1 */
	        {10, {2, 0xa3, 0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12}}, /* mov moffs */
	        {5, {2, 0x0f, 0xb6, 0x46, 0x10}},       /* movzx eax, byte [rsi+16] */
	        {6, {2, 0xf0, 0x48, 0x0f, 0xb1, 0x0f}}, /* lock cmpxchg [rdi], rcx */
	        {6, {2, 0x0f, 0x38, 0xf0, 0x07}},       /* movbe */
	        {4, {2, 0xf3, 0x48, 0xab}},             /* rep stosq */
	        {3, {1, 0x6c}},                         /* insb */
	        {7, {1, 0x67, 0x89, 0x50, 0x10, 0x90}}, /* a16 mov */
	        {6, {0, 0x26, 0x89, 0x45, 0xfe}},       /* es mov [di-2], ax */
	        {4, {0, 0x0f, 0x20, 0xc0}},             /* mov eax, cr0 */
	        {4, {2, 0x0f, 0x01, 0xd9}},             /* vmmcall */
	        {6, {2, 0x41, 0x0f, 0xba, 0x2b, 0x07}}, /* bts dword [r11], 7 */
	        {4, {2, 0x0f, 0x30, 0x90}},             /* wrmsr */
	        {16,
	         {2, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
	          0x89, 0x0b}}, /* exactly 15 bytes */
	};

	if (index >= ARRAY_LEN(seeds))
		return 0;
	memcpy(out, seeds[index].bytes, seeds[index].len);
	return seeds[index].len;
}

static bool is_width(unsigned bytes)
{
	return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

static void fields_check(const struct insn *i, enum insn_mode mode)
{
	static const uint64_t ones[16] = {
	        ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull,
	        ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull,
	};
	uint64_t ea;

	FUZZ_CHECK(i->op <= INSN_VIRT);
	FUZZ_CHECK(i->reg < 16 && i->rm < 16 && i->cr < 16 && i->base < 16 && i->index < 16);
	FUZZ_CHECK(i->scale <= 3);
	if (mode != INSN_MODE_64)
		FUZZ_CHECK(i->reg < 8 && i->base < 8 && i->index < 8);
	if (!i->mem)
		return;
	FUZZ_CHECK(i->seg <= HVM_GS);
	FUZZ_CHECK(i->addr_bytes == 2 || i->addr_bytes == 4 || i->addr_bytes == 8);
	FUZZ_CHECK(i->addr_bytes != 8 || mode == INSN_MODE_64);
	FUZZ_CHECK(i->addr_bytes != 2 || mode != INSN_MODE_64);
	ea = insn_ea(i, ones, UINT64_MAX);
	FUZZ_EQ(ea, insn_trunc(ea, i->addr_bytes));
	if (i->op == INSN_MOV) {
		FUZZ_CHECK(is_width(i->width_bytes) && is_width(i->reg_bytes));
		FUZZ_CHECK(i->width_bytes == i->reg_bytes || i->has_imm);
	}
}

static void store_check(const uint8_t *bytes, size_t len_bytes, enum insn_mode mode, int rc,
                        const struct insn *i)
{
	unsigned quick = insn_len_store(bytes, len_bytes, mode);

	if (!quick)
		return;
	FUZZ_EQ(rc, 0);
	FUZZ_EQ(quick, i->len);
	FUZZ_CHECK(i->op == INSN_MOV && i->mem && i->mem_dst && !i->lock);
}

static void shorter_check(const uint8_t *bytes, const struct insn *whole, enum insn_mode mode)
{
	for (size_t len = 0; len <= whole->len; len++) {
		uint8_t *exact = malloc(len ? len : 1);
		struct insn part;
		int rc;

		memset(&part, 0, sizeof(part));
		memcpy(exact, bytes, len);
		rc = insn_decode(exact, len, mode, &part);
		FUZZ_EQ(rc, len < whole->len ? -EAGAIN : 0);
		if (len < whole->len)
			FUZZ_EQ(insn_len_store(exact, len, mode), 0);
		else
			FUZZ_CHECK(!memcmp(&part, whole, sizeof(part)));
		free(exact);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	enum insn_mode mode;
	struct insn insn;
	int rc;

	if (len_bytes == 0)
		return 0;
	mode = data[0] % 3;
	memset(&insn, 0, sizeof(insn));
	rc = insn_decode(data + 1, len_bytes - 1, mode, &insn);
	FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -EAGAIN);
	FUZZ_CHECK(rc != -EAGAIN || len_bytes - 1 < INSN_LEN_MAX);
	store_check(data + 1, len_bytes - 1, mode, rc, &insn);
	if (rc)
		return 0;
	FUZZ_CHECK(insn.len >= 1 && insn.len <= INSN_LEN_MAX && insn.len <= len_bytes - 1);
	fields_check(&insn, mode);
	shorter_check(data + 1, &insn, mode);
	return 0;
}
