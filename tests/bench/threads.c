#include "tests/bench/bench.h"
void bench_threads(void)
{
}
