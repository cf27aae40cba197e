"""Guests that try to do harm (tests/guest/hostile_*.asm), each beside one that must not feel it, on SVM and on
VMX. What a guest is, and how it ends, its source says (tests/guest/hostile.inc); which cases it has, its image."""

import glob
import os
import re

from machine import BUILD, MB, ROOT, Failure, Skip, guest, mkdisk_plain, want

MACHINES = {'tcg': 'svm', 'bochs': 'vmx'}
# Those a guest can name as its GUEST_DISKS.
DISKS = {
    'null': ('source = "null:64M"\nnum_queues = 2', 'source = "null:1M"'),
    'ram': ('source = "ram:hostile.img"\nnum_queues = 2\nqueue_size = 64',
            'source = "ram:readonly.img"\nreadonly = true'),
}


def declared(source):
    """What the guest's source defines: {"ENDS": "error", ...}."""
    with open(source) as f:
        found = re.findall(r'^%define GUEST_(\w+)\s+"?([^"\n]*)"?$', f.read(), re.M)
    return dict(found)


def case_names(image):
    """Each CASE has its title in the image."""
    with open(image, 'rb') as f:
        names = [name.decode() for name in re.findall(rb'case (\w+): \0', f.read())]
    want(len(set(names)) == len(names), f'cases of one name in {image}')
    return names


def case_verdicts(r, name, names):
    """(word, case, seconds, note) of each case; without exactly one verdict it has failed."""
    said = {}
    before_s = 0.0
    for at_s, line in r.heard:
        found = re.search(rf'^{name}\| (?:QUELL-TEST|case (\w+): (ok$|FAIL|SKIP) ?(.*))', line)
        if not found:
            continue
        if found[1]:
            said.setdefault(found[1], []).append((found[2], at_s - before_s, found[3]))
        before_s = at_s
    for case in sorted(said.keys() - set(names)):
        yield 'FAIL', case, 0.0, 'a verdict on a case that is not in the image'
    for case in names:
        verdicts = said.get(case, [])
        if len(verdicts) == 1:
            word, seconds, why = verdicts[0]
            yield word, case, seconds, why.strip()
        else:
            yield 'FAIL', case, 0.0, f'{len(verdicts)} verdicts, not one ({r.path})'


def neighbour_check(r):
    r.expect('neighbour| PASS neighbour')
    want(r.ended('neighbour') == 'power-off', f'the neighbour ended: {r.ended("neighbour")}')


def hostile(name, machine, options):
    """Boots both. The hostile guest ends as its source says; one that comes through has said PASS."""
    vcpus = int(options.get('VCPUS', '1'))
    how = options.get('ENDS', 'power-off')

    def test(t):
        if f'NOT_{machine.upper()}' in options:
            t.machine = machine
            raise Skip(options[f'NOT_{machine.upper()}'])
        names = case_names(os.path.join(BUILD, 'tests', 'guest', name))
        for image in ('hostile.img', 'readonly.img', 'neighbour.img'):
            mkdisk_plain(t, image, MB)
        manifest = guest(name, name, '', '', '32M', more=f'vcpus = {vcpus}', disks=DISKS[options.get('DISKS', 'null')])
        manifest += guest('neighbour', 'neighbour', '', '', '32M', disks=('source = "ram:neighbour.img"',))
        try:
            r = t.boot(manifest, machine=machine, cpus=vcpus + 2, memory='1G', timeout=240)
            t.cases = list(case_verdicts(r, name, names))
        except Failure:
            t.cases = [('FAIL', case, 0.0, 'the machine did not start') for case in names]
            raise
        neighbour_check(r)
        want(r.ended(name) == how, f'{name} ended: {r.ended(name)}, not {how} ({r.path})')
        failed = [case for word, case, _, _ in t.cases if word == 'FAIL']
        want(not failed, f'{len(failed)} of {len(names)} cases failed ({r.path})')
        want('FAIL' not in r.log, f'a guest says FAIL ({r.path}); last lines:\n{r.tail()}')
        if how == 'power-off':
            r.expect(f'{name}| PASS {name}')
        r.expect_code(0 if how == 'power-off' else 1)
        return f'{len(names)} cases, ' * bool(names) + f'{r.guest_stats(name)["exit_count"]} exits'
    return test


def parked_cores(t):
    """Cores that never start, and so many queues that firmware's old memory is in use: an end all the same."""
    disks = ['source = "null:1M"\nnum_queues = 32\nqueue_size = 1024'] * 8
    r = t.boot(guest('tiny', 'poweroff', '', '', '16M', disks=disks), cpus=6, timeout=90)
    r.expect_code(0)


def hostile_tests():
    for source in sorted(glob.glob(os.path.join(ROOT, 'tests', 'guest', 'hostile_*.asm'))):
        name = os.path.basename(source)[:-4]
        for machine, extension in MACHINES.items():
            yield f'{name}_{extension}', hostile(name, machine, declared(source))


TESTS = [*hostile_tests(), ('parked_cores_tcg', parked_cores)]
