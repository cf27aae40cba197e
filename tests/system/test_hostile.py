"""Guests that try to do harm (tests/guest/hostile_*.asm), each beside one that must not feel it."""

from machine import guest, small, want


def hostile(name, vcpus=1, how='power-off'):
    """Boots both. how: the hostile guest's end; one that comes through has said PASS."""
    def test(t):
        manifest = guest(name, name, '', '', '32M', more=f'vcpus = {vcpus}',
                         disks=('source = "null:64M"\nnum_queues = 2', 'source = "null:1M"'))
        r = t.boot(manifest + small('neighbour'), cpus=vcpus + 2, memory='1G', timeout=240)
        want('FAIL' not in r.log, f'a guest says FAIL ({r.path}); last lines:\n{r.tail()}')
        r.expect('neighbour| PASS neighbour')
        want(r.ended('neighbour') == 'power-off', f'the neighbour ended: {r.ended("neighbour")}')
        want(r.ended(name) == how, f'{name} ended: {r.ended(name)}, not {how} ({r.path})')
        if how == 'power-off':
            r.expect(f'{name}| PASS {name}')
        r.expect_code(0 if how == 'power-off' else 1)
        return f'{r.guest_stats(name)["exit_count"]} exits'
    return test


def parked_cores(t):
    """Cores that never start, and so many queues that firmware's old memory is in use: an end all the same."""
    disks = ['source = "null:1M"\nnum_queues = 32\nqueue_size = 1024'] * 8
    r = t.boot(guest('tiny', 'poweroff', '', '', '16M', disks=disks), cpus=6, timeout=90)
    r.expect_code(0)


TESTS = [
    ('hostile_msr_tcg', hostile('hostile_msr')),
    ('hostile_io_tcg', hostile('hostile_io')),
    ('hostile_mmio_tcg', hostile('hostile_mmio')),
    ('hostile_priv_tcg', hostile('hostile_priv')),
    ('hostile_apic_tcg', hostile('hostile_apic', vcpus=2)),
    ('hostile_virtio_tcg', hostile('hostile_virtio')),
    ('hostile_idt_tcg', hostile('hostile_idt', how='error')),
    ('hostile_stack_tcg', hostile('hostile_stack', how='error')),
    ('parked_cores_tcg', parked_cores),
]
