"""Bad input: each gets a message with its place and what to do, the failure exit code, and no byte
of the disk changes."""

import os

from machine import guest, small, unchanged, want

TINY = small('tiny', 'poweroff')


def bad(manifest, says, line=None, col=None, files=None):
    """Boots, and wants an error that says so at that place; files: {name: bytes} beside it."""
    def test(t):
        disk = t.disk()
        for name, data in (files or {}).items():
            t.file(name, data)
        r = t.boot(manifest, disk=disk, timeout=90)
        r.expect_code(1)
        at_line, at_col, text = r.error()
        want(says in text, f'the error is {text!r}, not ...{says}...')
        want(line is None or (at_line, at_col) == (line, col), f'the error is at {at_line}:{at_col}, not {line}:{col}')
        want(not r.has('QUELL-TEST') and not r.has('QUELL-GUEST'), 'a guest ran all the same')
        unchanged(disk)
        return f'{at_line}:{at_col}: {text}'[:110]
    return test


CASES = {
    'syntax': bad('[host]\nio_core = = 0\n' + TINY, 'value', 2, 11),
    'unknown_key': bad(TINY.replace('kernel =', 'kernal ='), 'did you mean "kernel"?', 3, 1),
    'wrong_type': bad(TINY.replace('"32M"', '32'), 'it needs a string', 4, 10),
    'missing_file': bad(small('tiny', 'nowhere'), 'nowhere', 3, 10),
    'missing_initrd': bad(guest(kernel='poweroff', initrd='nowhere.img'), 'nowhere.img', 5, 10),
    'missing_ram_file': bad(guest(kernel='poweroff', initrd='', disks=('source = "ram:nowhere"',)), 'nowhere', 7, 10),
    'too_much_memory': bad(small('tiny', 'poweroff', memory='100G'), 'wants 102400 MiB', 4, 10),
    'overlapping_cpus': bad(small('a', 'poweroff', more='cpus = [1]') + small('b', 'poweroff', more='cpus = "1"'),
                            'core 1', 12, 8),
    'cpu_beyond_machine': bad(small('tiny', 'poweroff', more='cpus = [17]'), 'core 17', 5, 8),
    'io_core_beyond_machine': bad('[host]\nio_core = 9\n' + TINY, 'io_core', 2, 11),
    'io_core_taken': bad(small('tiny', 'poweroff', more='cpus = [0]'), 'io_core', 5, 8),
    'too_many_vcpus': bad(small('tiny', 'poweroff', more='vcpus = 8'), 'core', 5, 9),
    'unknown_partition': bad(guest(kernel='poweroff', initrd='', disks=('source = "nvme0n1p9"',)), 'no partition 9', 7, 10),
    'unknown_drive': bad(guest(kernel='poweroff', initrd='', disks=('source = "nvme5n1"',)), 'nvme5n1', 7, 10),
    'unknown_label': bad(guest(kernel='poweroff', initrd='', disks=('source = "PARTLABEL=nope"',)), 'nope', 7, 10),
    'zero_disks': bad(guest(kernel='poweroff', initrd='', disks=()), 'no disk', 1, 1),
    'zero_size_disk': bad(guest(kernel='poweroff', initrd='', disks=('source = "null:0"',)), 'null:', 7, 10),
    'one_partition_twice': bad(guest('a', 'poweroff', '') + guest('b', 'poweroff', ''), 'nvme0n1p2', 14, 10),
    'one_partition_by_two_names': bad(
        guest('a', 'poweroff', '') + guest('b', 'poweroff', '', disks=('source = "PARTLABEL=q2"',)), 'nvme0n1p2'),
    'no_kernel': bad(small('tiny', 'initrd.img'), 'tiny', 3, 10),
    'text_as_kernel': bad(small('tiny', 'text'), 'tiny', 3, 10, files={'text': b'hello\n'}),
    'empty_kernel': bad(small('tiny', 'empty'), 'tiny', 3, 10, files={'empty': b''}),
    'cut_kernel': bad(small('tiny', 'cut', memory='64M'), 'cut off', 3, 10, files={}),
    'no_guest': bad('[host]\nio_core = 0\n', 'no guest', 1, 1),
}


def cut_kernel(t):
    """The first 100 KB of a real kernel."""
    with open(os.path.join(os.path.dirname(t.folder), '..', 'guest', 'vmlinuz'), 'rb') as f:
        t.file('cut', f.read(100000))
    return CASES['cut_kernel'](t)


def no_manifest(t):
    disk = t.disk()
    r = t.boot(None, disk=disk, timeout=90)
    r.expect_code(1)
    r.expect('quell.toml')
    unchanged(disk)


TESTS = [(f'bad_{name}', cut_kernel if name == 'cut_kernel' else test) for name, test in CASES.items()]
TESTS.append(('bad_no_manifest', no_manifest))
for _name, _test in TESTS:
    _test.seconds = 6
