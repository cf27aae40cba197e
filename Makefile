# Quell. `make run` and `make check` are the two commands; both install what they need.
#
#   make                 build/quell.efi
#   make run             boot it with a Debian guest     [MACHINE=auto|tcg|kvm|bochs] [MANIFEST=FILE]
#   make test            hosted unit tests
#   make check           all tests: hosted, then whole machines

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

B := build
MACHINE ?= auto
MANIFEST ?=
HOSTCC ?= gcc

# --- sources ---------------------------------------------------------------------------------
# Everything in vmm/, virtio/ and drivers/ is portable: it compiles hosted from the same source.
# Of arch/x86/ only the files named here are pure.
ARCH_PURE := arch/x86/insn.c arch/x86/nested.c arch/x86/vmx/controls.c arch/x86/vmx/ept.c arch/x86/svm/npt.c
PORTABLE  := $(wildcard vmm/*.c virtio/*.c drivers/*.c drivers/*/*.c) $(wildcard $(ARCH_PURE))
MACHINE_C := $(wildcard arch/x86/*.c arch/x86/*/*.c boot/*.c)
EFI_C     := $(sort $(PORTABLE) $(MACHINE_C))
EFI_ASM   := $(wildcard arch/x86/*.asm arch/x86/*/*.asm)

# --- the hypervisor ------------------------------------------------------------------------
CC       := gcc
WARN     := -Wall -Wextra -Werror -Wstrict-prototypes -Wmissing-prototypes -Wshadow -Wvla -Wundef
# General registers only: a guest's FPU, SSE and AVX state stays in the processor across exits.
EFI_CF   := -std=c11 -O2 -g $(WARN) -I. -I$(B)/gen -ffreestanding -fpic -fvisibility=hidden -fno-plt \
            -fno-stack-protector -fno-strict-aliasing -fno-asynchronous-unwind-tables \
            -mno-red-zone -mgeneral-regs-only -fcf-protection=none -fno-jump-tables -MMD -MP
BOOT_CF  := -isystem /usr/include/efi -isystem /usr/include/efi/x86_64 -DGNU_EFI_USE_MS_ABI -maccumulate-outgoing-args
NASM     := nasm
EFI_O    := $(EFI_C:%.c=$(B)/efi/%.o) $(EFI_ASM:%.asm=$(B)/efi/%.asm.o)

.PHONY: all run test check deps clean guest test-guests
all: $(B)/quell.efi

$(B)/efi/boot/%.o: EFI_CF += $(BOOT_CF)
$(B)/efi/%.o: %.c Makefile | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(EFI_CF) -c $< -o $@

# Structure offsets for assembly come from C: arch/x86/offsets.c compiles to a list of %defines.
$(B)/gen/stamp: $(B)/gen/dsdt.h $(B)/gen/offsets.inc
	@touch $@

$(B)/gen/offsets.inc: arch/x86/offsets.c.in Makefile $(wildcard arch/x86/*.h)
	@mkdir -p $(@D)
	@$(CC) $(filter-out -MMD -MP,$(EFI_CF)) -x c -S $< -o - | sed -n 's/^.*->\([A-Za-z0-9_]*\) \$$*\(-*[0-9]*\).*/%define \1 \2/p' > $@

$(B)/efi/%.asm.o: %.asm $(B)/gen/offsets.inc Makefile
	@mkdir -p $(@D)
	@echo "  NASM    $<"
	@$(NASM) -f elf64 -g -F dwarf -Werror -I$(B)/gen/ -I./ $< -o $@

# The guest's DSDT: ASL through iasl to a byte array.
$(B)/gen/dsdt.h: vmm/dsdt.asl
	@mkdir -p $(@D)
	@echo "  IASL    $<"
	@iasl -ve -p $(B)/gen/dsdt $< >$(B)/gen/dsdt.log 2>&1 || { cat $(B)/gen/dsdt.log; exit 1; }
	@python3 tools/bin2h dsdt_aml $(B)/gen/dsdt.aml > $@

$(B)/quell.elf: $(EFI_O) boot/quell.lds
	@echo "  LD      $@"
	@ld -nostdlib -shared -Bsymbolic -znocombreloc -znoexecstack -T boot/quell.lds \
	    /usr/lib/crt0-efi-x86_64.o $(EFI_O) -o $@ -L/usr/lib -lgnuefi --no-undefined

$(B)/%.efi: $(B)/%.elf
	@echo "  EFI     $@"
	@objcopy -j .text -j .sdata -j .data -j .rodata -j .dynamic -j .dynsym -j .rel -j .rela -j .rel.* -j .rela.* -j .reloc \
	    --target efi-app-x86_64 --subsystem=10 $< $@

# --- hosted: the same portable sources with sanitizers -----------------------------------------
HOST_CF := -std=c11 -O1 -g $(WARN) -I. -I$(B)/gen -fno-strict-aliasing -D_GNU_SOURCE -MMD -MP -pthread \
           -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
HOST_O  := $(PORTABLE:%.c=$(B)/host/%.o)
FAKE_O  := $(patsubst %.c,$(B)/host/%.o,$(wildcard tests/fake/*.c))
UNIT_C  := $(wildcard tests/unit/test_*.c)
UNIT    := $(UNIT_C:tests/unit/%.c=$(B)/host/%)

$(B)/host/%.o: %.c Makefile | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  HOSTCC  $<"
	@$(HOSTCC) $(HOST_CF) -c $< -o $@

$(B)/host/libquell.a: $(HOST_O) $(FAKE_O)
	@rm -f $@; ar rcs $@ $^

$(B)/host/test_%: $(B)/host/tests/unit/test_%.o $(B)/host/libquell.a
	@$(HOSTCC) $(HOST_CF) $< $(B)/host/libquell.a -o $@

$(B)/host/manifest_dump: $(B)/host/tests/unit/manifest_dump.o $(B)/host/libquell.a
	@$(HOSTCC) $(HOST_CF) $< $(B)/host/libquell.a -o $@

# Tests in Python drive hosted programs; UNIT_AIDS are those programs.
UNIT_PY   := $(wildcard tests/unit/test_*.py)
UNIT_AIDS := $(B)/host/manifest_dump

include tests/fuzz/rules.mk

.SECONDARY:
test: $(UNIT) $(UNIT_AIDS)
	@python3 tools/unit $(UNIT) $(UNIT_PY)

# --- coverage: the hosted tests once more, without sanitizers, whose own branches would count -----------
#   make coverage [LINE=PERCENT] [BRANCH=PERCENT]: fails below those; pages in build/coverage/
COV_CF   := -std=c11 -O0 -g $(WARN) -I. -I$(B)/gen -fno-strict-aliasing -D_GNU_SOURCE -MMD -MP -pthread --coverage -fprofile-update=atomic
COV_PLAY := $(FUZZ_NAMES:%=$(B)/cov/fuzz_%)
COV_UNIT := $(filter-out $(B)/cov/test_fetch,$(UNIT_C:tests/unit/%.c=$(B)/cov/%)) $(COV_PLAY)

$(B)/cov/%.o: %.c Makefile | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  COVCC   $<"
	@$(HOSTCC) $(COV_CF) -c $< -o $@

$(B)/cov/libquell.a: $(PORTABLE:%.c=$(B)/cov/%.o) $(patsubst %.c,$(B)/cov/%.o,$(wildcard tests/fake/*.c))
	@rm -f $@; ar rcs $@ $^

$(B)/cov/test_%: $(B)/cov/tests/unit/test_%.o $(B)/cov/libquell.a
	@$(HOSTCC) $(COV_CF) $^ -o $@

$(COV_PLAY): $(B)/cov/fuzz_%: $(B)/cov/tests/fuzz/fuzz_%.o $(B)/cov/tests/fuzz/replay.o $(B)/cov/libquell.a
	@$(HOSTCC) $(COV_CF) -fsanitize=address $^ -o $@ # replay.c calls its library

.PHONY: coverage coverage-programs coverage-list
coverage-programs: $(COV_UNIT)
coverage-list:
	@echo $(COV_UNIT)
coverage:
	@tools/coverage $(or $(LINE),0) $(or $(BRANCH),0)

-include $(shell find $(B)/cov -type f -name '*.d' 2>/dev/null)

# --- whole machines ------------------------------------------------------------------------------
# Small guests for tests: each is a minimal bzImage in one assembly file.
GUESTS := $(patsubst tests/guest/%.asm,$(B)/tests/guest/%,$(wildcard tests/guest/*.asm))

$(B)/tests/guest/%: tests/guest/%.asm $(wildcard tests/guest/*.inc)
	@mkdir -p $(@D)
	@echo "  NASM    $<"
	@$(NASM) -f bin -Werror -Itests/guest/ $< -o $@

test-guests: $(GUESTS)

# The Linux guest, from Debian's packages.
guest:
	@tools/guest

deps:
	@tools/deps

RUN_MANIFEST := $(or $(MANIFEST),tools/manifests/$(if $(filter bochs,$(MACHINE)),debian-bochs,debian).toml)
RUN_TIMEOUT  ?= 3600

$(B)/run/disk.img:
	@mkdir -p $(@D)
	@tools/mkdisk make $@

$(B)/run/ram.img:
	@mkdir -p $(@D)
	@tools/mkdisk make $@ --plain 16M

run:
	@tools/deps
	@$(MAKE) --no-print-directory $(B)/quell.efi guest $(B)/run/disk.img $(B)/run/ram.img
	@tools/run --machine $(MACHINE) --manifest $(RUN_MANIFEST) --disk $(B)/run/disk.img --timeout $(RUN_TIMEOUT)

# Installs, builds, and runs every test; its last line is "N passed, N failed, N skipped".
check:
	@python3 tools/check

clean:
	rm -rf $(B)

-include $(shell find $(B)/efi $(B)/host -type f -name '*.d' 2>/dev/null)

# --- the back ends' smoke test: arch/ and boot/ with tests/system/hvm_smoke/ instead of vmm/ --------
SMOKE_C := $(filter arch/% boot/%,$(EFI_C)) drivers/uart.c \
           $(addprefix vmm/,fmt.c manifest.c manifest_check.c manifest_keys.c toml.c utf8.c) \
           $(wildcard tests/system/hvm_smoke/*.c)
SMOKE_O := $(patsubst %,$(B)/efi/%.o,$(basename $(SMOKE_C))) $(filter %.asm.o,$(EFI_O)) \
           $(B)/efi/tests/system/hvm_smoke/guest.asm.o

$(B)/hvm-smoke.elf: $(SMOKE_O) boot/quell.lds
	@echo "  LD      $@"
	@ld -nostdlib -shared -Bsymbolic -znocombreloc -znoexecstack -T boot/quell.lds \
	    /usr/lib/crt0-efi-x86_64.o $(SMOKE_O) -o $@ -L/usr/lib -lgnuefi --no-undefined

# --- a firmware with faults, which starts the hypervisor (tests/system/test_firmware.py) -------------
SHIM_O := $(B)/efi/tests/system/firmware/shim.o

$(SHIM_O): EFI_CF += $(BOOT_CF)

$(B)/firmware-shim.elf: $(SHIM_O) boot/quell.lds
	@echo "  LD      $@"
	@ld -nostdlib -shared -Bsymbolic -znocombreloc -znoexecstack -T boot/quell.lds \
	    /usr/lib/crt0-efi-x86_64.o $(SHIM_O) -o $@ -L/usr/lib -lgnuefi --no-undefined

# --- the I/O core's loop as a host program: what a request, a pass and a source cost --------------
# Linked from the hypervisor's own objects, so that what is measured is what runs.
BENCH_CF  := -std=c11 -O2 -g $(WARN) -I. -D_GNU_SOURCE -fno-strict-aliasing -MMD -MP -pthread
BENCH_O   := $(patsubst %.c,$(B)/bench/%.o,$(wildcard tests/bench/*.c) tests/fake/virtio_guest.c)
BENCH_EFI := $(PORTABLE:%.c=$(B)/efi/%.o) $(B)/efi/arch/x86/string.o

.PHONY: bench-native
$(B)/bench/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  BENCHCC $<"
	@$(HOSTCC) $(BENCH_CF) -c $< -o $@

$(B)/bench/libefi.a: $(BENCH_EFI)
	@rm -f $@; ar rcs $@ $^

$(B)/bench/native: $(BENCH_O) $(B)/bench/libefi.a
	@$(HOSTCC) -pthread $^ -lm -o $@

bench-native: $(B)/bench/native
	@$(B)/bench/native $(BENCH)

-include $(shell find $(B)/bench -type f -name '*.d' 2>/dev/null)

# --- the polling policy, the hypervisor's own object, against QEMU's rules and the clairvoyant --------
#   make sim [SIM="--json"]: exits with an error if a target of docs/policy.md is missed; a second or two
SIM_O := $(patsubst %.c,$(B)/bench/%.o,$(wildcard tests/sim/*.c)) $(B)/efi/vmm/poll_policy.o

.PHONY: sim
$(B)/host/sim: $(SIM_O)
	@mkdir -p $(@D)
	@$(HOSTCC) $^ -o $@

sim: $(B)/host/sim
	@$(B)/host/sim $(SIM)

# --- races: cores that touch the same words, under ThreadSanitizer and without ----------------------
#   make tsan [TIME=SECONDS] [REQUESTS=N]: at most so much for each case of the loop; ROUNDS=N of arming
RACES_C  := $(PORTABLE) $(wildcard tests/tsan/*.c) tests/fake/virtio_guest.c
RACES_CF := -std=c11 -g $(WARN) -I. -I$(B)/gen -D_GNU_SOURCE -fno-strict-aliasing -pthread -MMD -MP
TSAN_CF  := $(RACES_CF) -O1 -fsanitize=thread -Wno-tsan
PLAIN_CF := $(RACES_CF) -O2
TIME     ?= 20
REQUESTS ?= 1300000
ROUNDS   ?= 10000000
.PHONY: tsan

$(B)/tsan/san/%.o: %.c Makefile | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  TSANCC  $<"
	@$(HOSTCC) $(TSAN_CF) -c $< -o $@

# The store buffers are the processor's own only where no sanitizer stands between.
$(B)/tsan/plain/%.o: %.c Makefile | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  PLAINCC $<"
	@$(HOSTCC) $(PLAIN_CF) -c $< -o $@

$(B)/tsan/%/libquell.a: $(addprefix $(B)/tsan/%/,$(filter-out tests/tsan/%,$(RACES_C:.c=.o)))
	@rm -f $@; ar rcs $@ $^

races_main = $(patsubst %.c,$(B)/tsan/$(1)/%.o,$(wildcard tests/tsan/*.c)) $(B)/tsan/$(1)/libquell.a

$(B)/tsan/races: $(call races_main,san)
	@$(HOSTCC) $(TSAN_CF) $^ -o $@

$(B)/tsan/races-plain: $(call races_main,plain)
	@$(HOSTCC) $(PLAIN_CF) $^ -o $@

# One safeguard taken out: a line of tests/tsan/mutants says of which file, and how.
$(B)/tsan/mutant/%: tests/tsan/mutants $(call races_main,plain)
	@mkdir -p $(@D)
	@echo "  MUTANT  $*"
	@set -- `grep '^$* ' $<`; source=$$3; script=`sed -n 's/^$*  *[^ ]*  *[^ ]*  *//p' $<`; \
	    sed "$$script" $$source > $@.c; ! cmp -s $$source $@.c || { echo "$*: nothing to take out of $$source"; exit 1; }
	@$(HOSTCC) $(filter-out -MMD -MP,$(PLAIN_CF)) -include tests/tsan/races.h -w $@.c $(filter-out $<,$^) -o $@

tsan: $(B)/tsan/races $(B)/tsan/races-plain
	@$(B)/tsan/races $(TIME) $(REQUESTS) $(ROUNDS)
	@$(B)/tsan/races-plain $(TIME) $(REQUESTS) $(ROUNDS)

-include $(shell find $(B)/tsan -type f -name '*.d' 2>/dev/null)

# --- every figure by name: Quell and the peer on the same emulated machine, and the hosted loop -------
#   make bench [BENCH_ARGS="--pairs 5"] [PEER=DIR] [RIG=DIR]: under 20 minutes on two cores
.PHONY: bench
bench:
	@tools/deps
	@$(MAKE) --no-print-directory $(B)/quell.efi guest $(B)/bench/native $(B)/host/sim $(B)/tsan/races $(B)/tsan/races-plain
	@PEER="$(PEER)" RIG="$(RIG)" tools/bench $(BENCH_ARGS)
