"""Machines: the back ends' own test on each, and those that cannot run guests."""

import os
import re

from machine import BUILD, ROOT, Skip, guest, unchanged, want


def hvm_smoke(machine, disable=None):
    """Interrupts wait for the guest's IF in the processor, so no window exits; unless that is disabled."""
    def test(t):
        efi = os.path.join(BUILD, 'hvm-smoke.efi')
        if not os.path.exists(efi):
            raise Skip('build/hvm-smoke.efi is not built')
        folder = os.path.join(ROOT, 'tests', 'system', 'hvm_smoke')
        with open(os.path.join(folder, 'quell.toml')) as f:
            manifest = f.read()
        if disable:
            manifest = f'[host]\ndisable = ["{disable}"]\n' + manifest
        r = t.boot(manifest, machine=machine, efi=efi, timeout=180, more=['--files', folder])
        r.expect_code(0)
        r.expect('quell: smoke: all ok')
        windows = int(re.search(r'smoke: (\d+) interrupt windows', r.log).group(1))
        want((windows > 0) == bool(disable), f'{windows} interrupt windows')
        return f'{r.log.count(" ok") - 1} cases, {windows} interrupt windows'
    return test


def refused(cpu, *words):
    """A machine without what is needed gets one line that says which control is missing."""
    def test(t):
        disk = t.disk()
        r = t.boot('[host]\nio_core = 0\n' + guest(), disk=disk, timeout=120, more=['--cpu', cpu])
        r.expect_code(1)
        want(not r.has('QUELL-GUEST'), 'a guest ran')
        lines = [l for l in r.log.splitlines() if l.startswith('quell: ') and any(w in l for w in words)]
        want(lines, f'no line names any of {words}; last lines:\n{r.tail()}')
        unchanged(disk)
        return lines[0]
    return test


TESTS = [
    ('hvm_smoke_tcg', hvm_smoke('tcg')),
    ('hvm_smoke_bochs', hvm_smoke('bochs')),
    ('hvm_smoke_bochs_windows', hvm_smoke('bochs', 'virtual-interrupts')),
    ('no_svm_tcg', refused('qemu64,-svm', 'SVM', 'VMX')),
    ('no_npt_tcg', refused('EPYC,+svm,-npt', 'nested paging', 'NPT')),
]
