"""The control interface from inside a guest: quellctl changes policies and marks phases, or is told no."""

import json
import re

from machine import (LINUX, LINUX_QUIET, MB, changed, guest, mkdisk, want)


def phase_lines(result):
    """The quell-phase lines by name of the phase."""
    found = [json.loads(line) for line in re.findall(r'^.*quell-phase: (\{.*\})\s*$', result.log, re.M)]
    return {p['name']: p for p in found}


def queues_sum(queues):
    """A disk's queues as one, with the timed kicks and interrupts as counts."""
    flat = [q | {k: q[k]['count'] for k in ('kick', 'interrupt')} for q in queues]
    return {k: sum(q[k] for q in flat) for k in flat[0]}


def check_sums(phases, stats):
    """Phases add up to the whole, and the time of each vCPU to its wall time."""
    for key in ('exit_count', 'requests', 'kicks', 'interrupts', 'read_bytes', 'written_bytes'):
        whole = stats.get(key)
        if whole is None:
            whole = sum(q[key] for d in stats['disks'] for q in d['queues'])
        parts = sum(p[key] for p in stats['phases'])
        want(parts == whole, f'{key}: phases have {parts}, the run {whole}')
    for p in phases.values():
        for v in p['vcpus']:
            used = v['guest_ns'] + v['handling_ns'] + v['halted_ns'] + v['rest_ns']
            want(abs(used - v['wall_ns']) <= 4, f'phase {p["name"]}: {used} ns of {v["wall_ns"]} accounted')
            want(v['rest_ns'] * 20 <= v['wall_ns'], f'phase {p["name"]}: more than 5 % of the time is in no column')
        for reason, e in p['exits'].items():
            want(sum(e['log2_cycles'].values()) == e['count'], f'histogram of {reason} in phase {p["name"]}')
            want(e['min_ns'] <= e['mean_ns'] <= e['max_ns'], f'mean of {reason} in phase {p["name"]}')


def control_granted(machine, source, vcpus, **kw):
    def test(t):
        bochs = machine == 'bochs'
        disk = None
        if bochs:
            t.file('ram.img', mkdisk.pattern(0, 16 * MB))
        else:
            disk = t.disk()
        size = '256K' if bochs else '4M'
        r = t.boot(guest(more=f'control = true\nvcpus = {vcpus}', disks=(f'source = "{source}"\nnum_queues = {vcpus}',),
                         cmdline=f'{LINUX_QUIET if bochs else LINUX}quell.job=control quell.size={size}', **kw),
                   machine=machine, disk=disk, timeout=900 if bochs else 300)
        r.expect_code(0)
        r.expect('QUELL-GUEST-FIO ok', 'QUELL-GUEST refused a bad name', 'QUELL-GUEST refused a bad disk',
                 'disk 0 queue 0 poll always', 'disk 0 queue 0 poll 0\n', 'disk 0 queue 0 poll auto', 'control = true',
                 'vmcall, control' if bochs else 'vmmcall, control')
        phases = phase_lines(r)
        want(list(phases) == ['start', 'always', 'zero', 'switching', 'end'], f'phases {list(phases)}')
        queue = {name: queues_sum(p['disks'][0]['queues']) for name, p in phases.items()}
        want(all(len(p['vcpus']) == vcpus for p in phases.values()), f'not every phase has {vcpus} vCPUs')
        want(queue['always']['requests'] >= 64 and queue['always']['kicks'] == 0,
             f'always: {queue["always"]["requests"]} requests, {queue["always"]["kicks"]} kicks')
        want(queue['zero']['kicks'] > 0 and queue['zero']['kick'] == queue['zero']['kicks'],
             f'zero: {queue["zero"]["kicks"]} kicks, {queue["zero"]["kick"]} of them timed')
        want(queue['zero']['arms'] >= queue['zero']['kicks'], 'zero: kicked without being armed')
        for name, q in queue.items():
            want(q['interrupt'] == q['interrupts'], f'{name}: {q["interrupt"]} interrupts timed')
        check_sums(phases, r.guest_stats('debian'))
        switches = int(re.search(r'switched policies (\d+) times', r.log)[1])
        want(switches > 0, 'the load was over before a policy was switched')
        if disk:
            want(changed(disk, 2) == 4 * MB // 512, f'{changed(disk, 2)} sectors changed, not 4 MiB')
        return f'{switches} switches under load, {queue["zero"]["kicks"]} kicks unpolled, 0 polled'
    return test


def control_denied(t):
    disk = t.disk()
    r = t.boot(guest(disks=('source = "nvme0n1p2"\npoll_ns = "always"',),
                     cmdline=LINUX + 'quell.job=control quell.size=1M'), disk=disk, timeout=240)
    r.expect_code(0)
    r.expect('control = false', 'QUELL-GUEST-FIO failed (3)')
    refusals = r.log.count("quellctl: refused: this guest's manifest does not say control = true")
    want(refusals == 3, f'{refusals} refusals, not 3')
    phases = phase_lines(r)
    want(list(phases) == ['start'], f'phases {list(phases)}')
    queue = phases['start']['disks'][0]['queues'][0]
    want(queue['requests'] >= 64 and queue['kicks'] <= 1, f'{queue["kicks"]} kicks in {queue["requests"]} requests')
    changed(disk, None)


control_bochs = control_granted('bochs', 'ram:ram.img', 1, memory='384M', kernel='vmlinuz-cloud', initrd='initrd-cloud.img')
control_bochs.seconds = 300

TESTS = [
    ('control_tcg', control_granted('tcg', 'nvme0n1p2', 2)),
    ('control_denied_tcg', control_denied),
    ('control_bochs', control_bochs),
]
