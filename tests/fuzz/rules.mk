# Fuzzers (tests/fuzz/fuzz.h): replayed by `make test` with any compiler, searching with clang.
#   make fuzz [TIME=SECONDS] [FUZZ="NAME ..."]
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_PLAY  := $(FUZZ_NAMES:%=$(B)/host/fuzz_%)
UNIT       += $(FUZZ_PLAY)

$(B)/host/fuzz_%: $(B)/host/tests/fuzz/fuzz_%.o $(B)/host/tests/fuzz/replay.o $(B)/host/libquell.a
	@$(HOSTCC) $(HOST_CF) $^ -o $@

# Code that reads guest memory, instrumented for tests/fake/fetch_watch.h: the compiler's half of
# ThreadSanitizer without its library. These objects come before the same files in libquell.a.
FETCH_C  := virtio/ring.c virtio/blk.c virtio/blk_request.c vmm/gmem.c tests/unit/fetch_mutant.c
FETCH_CF := -std=c11 -O1 -g $(WARN) -I. -fno-strict-aliasing -D_GNU_SOURCE -MMD -MP -fsanitize=thread -Wno-tsan \
            -Dmemcpy=fetch_memcpy -fno-builtin-memcpy

$(B)/fetch/%.o: %.c Makefile $(wildcard tests/fuzz/*.mk) | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  FETCHCC $<"
	@$(HOSTCC) $(FETCH_CF) -c $< -o $@

$(B)/host/test_fetch: $(B)/host/tests/unit/test_fetch.o $(FETCH_C:%.c=$(B)/fetch/%.o) $(B)/host/libquell.a
	@$(HOSTCC) $(HOST_CF) $^ -o $@

FUZZ_CC := clang
FUZZ_CF := -std=c11 -O2 -g -I. -I$(B)/gen -D_GNU_SOURCE -fno-strict-aliasing -fno-omit-frame-pointer -MMD -MP \
           -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -Wno-gnu-variable-sized-type-not-at-end

$(B)/fuzz/%.o: %.c Makefile $(wildcard tests/fuzz/*.mk) | $(B)/gen/stamp
	@mkdir -p $(@D)
	@echo "  FUZZCC  $<"
	@$(FUZZ_CC) $(FUZZ_CF) -c $< -o $@

$(B)/fuzz/libquell.a: $(PORTABLE:%.c=$(B)/fuzz/%.o) $(patsubst %.c,$(B)/fuzz/%.o,$(wildcard tests/fake/*.c))
	@rm -f $@; ar rcs $@ $^

$(B)/fuzz/fuzz_%: $(B)/fuzz/tests/fuzz/fuzz_%.o $(B)/fuzz/libquell.a
	@$(FUZZ_CC) $(FUZZ_CF) -fsanitize=fuzzer $^ -o $@

.PHONY: fuzz fuzzers
fuzzers: $(FUZZ_NAMES:%=$(B)/fuzz/fuzz_%) $(FUZZ_PLAY)

fuzz:
	@tools/fuzz --time $(TIME) $(FUZZ)

-include $(shell find $(B)/fuzz $(B)/fetch -type f -name '*.d' 2>/dev/null)
