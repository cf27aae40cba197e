"""Guests that do their work: fio on a partition, several guests, each way to end."""

from machine import LINUX, MB, changed, cloud, fio_blocks, guest, mkdisk, mkdisk_plain, small, unchanged, want


def exit_count(result, name, reasons):
    exits = result.guest_stats(name)['exits']
    return sum(v['count'] for k, v in exits.items() if k in reasons)


def check_fio(result, name='debian', requests=0):
    """A guest's fio run, from its own words and from the hypervisor's counts."""
    result.expect('QUELL-GUEST-FIO ok')
    want(result.ended(name) == 'power-off', f'{name} ended: {result.ended(name)}')
    stats = result.guest_stats(name)
    queues = [q for d in stats['disks'] for q in d['queues']]
    want(sum(q['errors'] for q in queues) == 0, f'{name} has disk errors')
    done = sum(q['requests'] for q in queues)
    want(done >= requests, f'{name} made {done} requests, fewer than {requests}')
    kicks = sum(q['kicks'] for q in queues)
    return f'{done} requests, {kicks} kicks, {stats["exit_count"]} exits'


def debian_fio(t):
    disk = t.disk()
    r = t.boot('[host]\nio_core = 0\n' + guest(), disk=disk, timeout=240)
    r.expect_code(0)
    note = check_fio(r, requests=2 * 32 * MB // 4096)
    want(changed(disk, 2) == 32 * MB // 512, f'{changed(disk, 2)} sectors changed, not 32 MiB')
    want(fio_blocks(disk, 2, 32 * MB) == 32 * MB // 4096, 'a block lacks the header that fio writes')
    return note


def debian_fio_two_queues(t):
    disk = t.disk()
    r = t.boot(guest(more='vcpus = 2', disks=('source = "PARTLABEL=q2"\nnum_queues = 2\nqueue_size = 64',),
                     cmdline=LINUX + 'quell.job=fio quell.size=8M'), disk=disk, timeout=240)
    r.expect_code(0)
    r.expect('2 vCPU,', '2 queue(s)')
    note = check_fio(r, requests=2 * 8 * MB // 4096)
    want(changed(disk, 2) == 8 * MB // 512, f'{changed(disk, 2)} sectors changed, not 8 MiB')
    return note


def debian_fio_4k_blocks(t):
    disk = t.disk(block=4096)
    r = t.boot(guest(disks=('source = "PARTUUID=00000000-0000-4000-8000-000000000002"',),
                     cmdline=LINUX + 'quell.job=fio quell.size=8M'), disk=disk, timeout=240,
               more=['--nvme-opts', 'logical_block_size=4096,physical_block_size=4096'])
    r.expect_code(0)
    note = check_fio(r, requests=2 * 8 * MB // 4096)
    want(changed(disk, 2, 4096) == 8 * MB // 512, f'{changed(disk, 2, 4096)} sectors changed, not 8 MiB')
    return note


def debian_readonly(t):
    disk = t.disk()
    r = t.boot(guest(disks=('source = "nvme0n1p2"\nreadonly = true',),
                     cmdline=LINUX + 'quell.job=fio quell.size=1M'), disk=disk, timeout=240)
    r.expect_code(0)
    r.expect('read-only 1', 'QUELL-GUEST-FIO failed')
    unchanged(disk)


def poll_policy(poll):
    def test(t):
        disk = t.disk()
        r = t.boot(guest(disks=(f'source = "nvme0n1p2"\npoll_ns = {poll}',),
                         cmdline=LINUX + 'quell.job=fio quell.size=4M'), disk=disk, timeout=240)
        r.expect_code(0)
        note = check_fio(r, requests=2 * 4 * MB // 4096)
        want(changed(disk, 2) == 4 * MB // 512, f'{changed(disk, 2)} sectors changed, not 4 MiB')
        return note
    return test


def idle(how, expected):
    """The I/O core waits as the manifest says, and wakes from it."""
    def test(t):
        disk = t.disk()
        r = t.boot(f'[host]\nidle = "{how}"\n' + guest(disks=('source = "nvme0n1p2"\npoll_ns = 0',),
                   cmdline=LINUX + 'quell.job=fio quell.size=2M'), disk=disk, timeout=240)
        r.expect_code(0)
        r.expect(f'waits by {expected}')
        note = check_fio(r, requests=2 * 2 * MB // 4096)
        loop = r.stats()['ioloop']
        want(loop['wakes'] > 2 * 2 * MB // 4096 // 64, f'{loop["wakes"]} wake-ups')
        return f'{note}, {loop["sleeps"]} sleeps'
    return test


def debian_fio_bochs(t):
    mkdisk_plain(t, 'ram.img', 16 * MB)
    r = t.boot(cloud('quell.job=fio quell.size=1M', disks=('source = "ram:ram.img"',)), machine='bochs', timeout=700)
    r.expect_code(0)
    note = check_fio(r, requests=2 * MB // 4096)
    want(exit_count(r, 'debian', {'EPT_MISCONFIG'}) > 0, 'no EPT_MISCONFIG exit: kicks take a slower way')
    want(exit_count(r, 'debian', {'INTERRUPT_WINDOW'}) == 0, 'exits for an interrupt window')
    r.expect('EPT_MISCONFIG')
    return note


def two_guests(t):
    disk = t.disk()
    fio = LINUX + 'quell.job=fio quell.size=8M'
    r = t.boot(guest('left', memory='384M', cmdline=fio, disks=('source = "nvme0n1p1"',), more='cpus = [1]') +
               guest('right', memory='384M', cmdline=fio, disks=('source = "nvme0n1p2"',), more='cpus = "2"') +
               small('crash', 'triplefault'), disk=disk, timeout=300)
    want(r.ended('crash') == 'triple-fault', f'crash ended: {r.ended("crash")}')
    for name in ('left', 'right'):
        want(r.ended(name) == 'power-off', f'{name} ended: {r.ended(name)}')
    want(r.log.count('QUELL-GUEST-FIO ok') == 2, 'not both guests had their fio verified')
    r.expect_code(1)  # a guest that crashed is a failed run
    r.expect('left', 'right', 'QUELL-TEST triplefault runs')
    for part in (1, 2):
        want(fio_blocks(disk, part, 8 * MB) == 8 * MB // 4096, f'partition {part} lacks what fio wrote')
    places = mkdisk.layout([16 * MB, 64 * MB, 16 * MB])[0]
    with open(disk, 'rb') as f:
        f.seek(places[2][0])
        want(f.read(places[2][1]) == mkdisk.pattern(*places[2]), 'partition 3 changed')


def two_guests_bochs(t):
    mkdisk_plain(t, 'ram.img', 16 * MB)
    r = t.boot(cloud('quell.job=fio quell.size=512K', disks=('source = "ram:ram.img"',)) +
               small('crash', 'triplefault'), machine='bochs', cpus=3, timeout=900)
    want(r.ended('crash') == 'triple-fault', f'crash ended: {r.ended("crash")}')
    r.expect('QUELL-TEST triplefault runs')
    check_fio(r)
    r.expect_code(1)


def ends(machine, name, kernel, how, code):
    def test(t):
        r = t.boot(small(name, kernel), machine=machine, timeout=120)
        r.expect(f'QUELL-TEST {kernel} runs')
        want(r.ended(name) == how, f'{name} ended: {r.ended(name)}, not {how}')
        r.expect_code(code)
        want(r.guest_stats(name)['ended'] == how, 'quell-stats tells another end')
    return test


def slow(function, seconds):
    function.seconds = seconds
    return function


TESTS = [
    ('debian_fio_tcg', debian_fio),
    ('debian_fio_two_queues_tcg', debian_fio_two_queues),
    ('debian_fio_4k_blocks_tcg', debian_fio_4k_blocks),
    ('debian_readonly_tcg', debian_readonly),
    ('debian_poll_0_tcg', poll_policy('0')),
    ('idle_auto_tcg', idle('auto', 'hlt')),
    ('idle_mwait_tcg', idle('mwait', 'mwait')),
    ('idle_poll_tcg', idle('poll', 'poll')),
    ('debian_poll_always_tcg', poll_policy('"always"')),
    ('debian_fio_bochs', slow(debian_fio_bochs, 120)),
    ('two_guests_tcg', two_guests),
    ('two_guests_bochs', slow(two_guests_bochs, 150)),
]
for _machine in ('tcg', 'bochs'):
    for _kernel, _how, _code in (('poweroff', 'power-off', 0), ('reset', 'reset', 0), ('triplefault', 'triple-fault', 1)):
        TESTS.append((f'{_kernel}_{_machine}', ends(_machine, 'tiny', _kernel, _how, _code)))
