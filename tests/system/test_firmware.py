"""Firmware that does what it should not (tests/system/firmware/shim.c), machines that start anew, and what is big or
missing at boot."""

import os
import re
import signal
import socket
import subprocess
import json
import time

from machine import BUILD, MB, Failure, Skip, guest, small, want

SHIM = os.path.join(BUILD, 'firmware-shim.efi')
TINY = small('poweroff')


def boot_spoilt(t, faults, manifest, **kw):
    if not os.path.exists(SHIM):
        raise Skip('build/firmware-shim.efi is not built')
    t.file('faults.txt', faults.encode())
    more = ['--esp-file', 'QUELL.EFI=' + os.path.join(BUILD, 'quell.efi'),
            '--esp-file', 'FAULTS.TXT=' + t.path('faults.txt')] + kw.pop('more', [])
    return t.boot(manifest, efi=SHIM, timeout=120, more=more, **kw)


def spoilt(t):
    """Faults that change nothing: a stale map key, no free low page, no attributes, neither screen nor MP services."""
    r = boot_spoilt(t, 'stale-key no-low-page no-attributes no-gop no-mp', TINY + small('spare', 'poweroff'))
    want(r.log.count('shim: stale key refused') == 2, f'the key was refused {r.log.count("stale key refused")} times')
    r.expect('4 cores', 'guest spare: ended: power-off', 'guest poweroff: ended: power-off')
    r.expect_code(0)


def no_acpi(t):
    r = boot_spoilt(t, 'no-acpi', TINY)
    r.expect('4 cores', 'ended: power-off')
    r.expect_code(0)


def nothing_to_see(t):
    """Neither a screen nor a serial line: the machine's end is all there is."""
    if not os.path.exists(SHIM):
        raise Skip('build/firmware-shim.efi is not built')
    r = boot_spoilt(t, 'no-gop', TINY, more=['--no-serial'])
    r.expect_code(0)
    want('quell:' not in r.log, 'there was a serial line')


def low_reserved(t):
    """No page below 1 MiB at all: no other processor can start, and that is said."""
    r = boot_spoilt(t, 'low-reserved', TINY)
    r.expect('no memory below 1 MiB for its first page', 'guest "poweroff" needs another')
    r.expect_code(1)


def ghost(t):
    """A processor that is listed and does not exist: named when a guest wants it, else without harm."""
    r = boot_spoilt(t, 'ghost', small('poweroff', more='cpus = [4]'))
    r.expect('core 4 (APIC id 77) did not start', 'guest "poweroff" needs another')
    r.expect_code(1)


def x2apic(t):
    """Firmware leaves the processor in x2APIC mode."""
    r = boot_spoilt(t, 'x2apic', TINY, machine='bochs')
    r.expect('ended: power-off')
    r.expect_code(0)


def big_initrd(t):
    """The largest file that is loaded."""
    with open(t.path('big.img'), 'wb') as f:
        f.truncate(512 * MB)
    r = t.boot(guest('poweroff', 'poweroff', 'big.img', '', '1G', disks=('source = "null:1M"',)), timeout=200)
    r.expect('loading big.img, 512 MiB ........', 'ended: power-off')
    r.expect_code(0)


def qmp(path, command):
    """One command; events that come between are dropped."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(path)
        with s.makefile('rw') as f:
            for name in (None, 'qmp_capabilities', command):
                if name:
                    f.write(json.dumps({'execute': name}) + '\n')
                    f.flush()
                while 'return' not in (answer := json.loads(f.readline())) and 'QMP' not in answer:
                    want('error' not in answer, f'QMP: {answer}')


def warm_reset(t):
    """Twice, while guests run: the third life is like the first. The second guest ends the machine's last life."""
    path = t.path('qmp')
    # A socket's path may have 107 bytes.
    short = os.path.relpath(path)
    command = t.command(small('spin') + small('poweroff'), timeout=150, more=[
        '--qemu-args=-action reboot=reset -qmp unix:%s,server=on,wait=off' % short])
    with open(t.path('console.log'), 'wb') as out:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        for life in range(1, 4):
            end = time.monotonic() + 60
            while read(t.path('serial.log')).count('guest poweroff: ended: power-off') < life:
                want(run.poll() is None, f'the machine ended in life {life}')
                want(time.monotonic() < end, f'life {life} does not get to its guests (build/system/{t.name}/serial.log)')
                time.sleep(0.2)
            if life < 3:
                qmp(short, 'system_reset')
        log = read(t.path('serial.log'))
        want(len(re.findall(r'^spin\| QUELL-TEST spin runs', log, re.M)) == 3, 'spin did not run three times')
        want('panic' not in log, 'a panic')
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(20)


def read(path):
    if not os.path.exists(path):
        return ''
    with open(path, errors='replace') as f:
        return f.read()


def smp8(machine, seconds):
    """Eight virtual processors, seven of them started at once, a hundred times."""
    def test(t):
        r = t.boot(small('smp8', more='vcpus = 8'), machine=machine, cpus=9, timeout=240)
        if 'PASS smp8' not in r.log:
            raise Failure(f'no PASS ({r.path}); last lines:\n{r.tail()}')
        r.expect_code(0)
    test.seconds = seconds
    return test


TESTS = [
    ('firmware_spoilt_tcg', spoilt),
    ('firmware_no_acpi_tcg', no_acpi),
    ('firmware_nothing_to_see_tcg', nothing_to_see),
    ('firmware_low_reserved_tcg', low_reserved),
    ('firmware_ghost_tcg', ghost),
    ('firmware_x2apic_bochs', x2apic),
    ('initrd_512m_tcg', big_initrd),
    ('warm_reset_twice_tcg', warm_reset),
    ('smp8_tcg', smp8('tcg', 20)),
    ('smp8_bochs', smp8('bochs', 40)),
]
