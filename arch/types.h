/*
 * Types and small helpers that every layer uses. Stands on its own and compiles hosted and
 * freestanding alike.
 */
#ifndef QUELL_ARCH_TYPES_H
#define QUELL_ARCH_TYPES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t gpa_t; /* guest-physical address */
typedef uint64_t gva_t; /* guest-virtual (linear) address */
typedef uint64_t hpa_t; /* host-physical address; the hypervisor runs identity-mapped */

#define PAGE_SIZE  4096u
#define PAGE_SHIFT 12u
#define KIB        1024ull
#define MIB        (1024ull * KIB)
#define GIB        (1024ull * MIB)

#define CACHE_LINE_BYTES 64

/* The values are Linux's, spelt alike, so that a hosted test may include <errno.h> as well. */
#define ENOENT     2
#define EIO        5
#define E2BIG      7
#define EAGAIN     11
#define ENOMEM     12
#define EFAULT     14
#define EBUSY      16
#define ENODEV     19
#define EINVAL     22
#define ENOSPC     28
#define EROFS      30
#define ERANGE     34
#define EOPNOTSUPP 95
#define ETIMEDOUT  110

#define ARRAY_LEN(a)                  (sizeof(a) / sizeof((a)[0]))
#define ALIGN_DOWN(x, a)              ((x) & ~((__typeof__(x))(a)-1))
#define ALIGN_UP(x, a)                ALIGN_DOWN((x) + ((__typeof__(x))(a)-1), a)
#define IS_ALIGNED(x, a)              (((x) & ((__typeof__(x))(a)-1)) == 0)
#define MIN(a, b)                     ((a) < (b) ? (a) : (b))
#define MAX(a, b)                     ((a) > (b) ? (a) : (b))
#define BIT(n)                        (1ull << (n))
#define CONTAINER_OF(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PACKED       __attribute__((packed))
#define CACHE_ALIGN  __attribute__((aligned(CACHE_LINE_BYTES)))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))
#define NORETURN     __attribute__((noreturn))
/* Kept out of its caller: the caller's own code then shows what it costs when this is not called. */
#define NOINLINE __attribute__((noinline))
#define RARE     __attribute__((noinline, cold))

#endif
