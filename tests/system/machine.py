"""What system tests share: booting a machine with a manifest, and looking at how it went."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, '..', '..'))
BUILD = os.path.join(ROOT, 'build')
sys.dont_write_bytecode = True


def tool(name):
    """A program of tools/ as a module."""
    import importlib.machinery
    import importlib.util
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(ROOT, 'tools', name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


mkdisk = tool('mkdisk')
MB = 1 << 20
PARTS = [16 * MB, 64 * MB, 16 * MB]  # the disk every test starts from
FIO_MAGIC = b'\xca\xac'              # 0xacca, first of fio's verify header


class Failure(Exception):
    """A test's finding: something is not as it must be."""


class Skip(Exception):
    """The test cannot run here, and why."""


def want(condition, why):
    if not condition:
        raise Failure(why)


class Result:
    """One boot: exit code, serial log, and what can be told from it."""

    def __init__(self, code, log, path, heard=()):
        self.code, self.log, self.path = code, log, path
        self.heard = heard  # (seconds since the start, line) of all that tools/run said

    def has(self, text):
        return text in self.log

    def expect(self, *texts):
        for text in texts:
            want(text in self.log, f'the log lacks {text!r} ({self.path})')

    def expect_code(self, code):
        want(self.code == code, f'exit code {self.code}, not {code} ({self.path}); last lines:\n{self.tail()}')

    def tail(self, count=12):
        return '\n'.join('    ' + line[:160] for line in self.log.splitlines()[-count:])

    def ended(self, guest):
        """How a guest ended."""
        found = re.findall(rf'guest {re.escape(guest)}: ended: (\S+)', self.log)
        want(len(found) == 1, f'guest {guest} ended {len(found)} times ({self.path})')
        return found[0]

    def stats(self):
        """The quell-stats line as a dictionary."""
        found = re.findall(r'^.*quell-stats: (\{.*\})\s*$', self.log, re.M)
        want(len(found) == 1, f'{len(found)} quell-stats lines, not one ({self.path})')
        try:
            return json.loads(found[0])
        except ValueError as e:
            raise Failure(f'quell-stats is not JSON: {e} ({self.path})') from e

    def guest_stats(self, guest):
        for g in self.stats()['guests']:
            if g['name'] == guest:
                return g
        raise Failure(f'quell-stats lacks guest {guest} ({self.path})')

    def error(self):
        """(line, column, text) of the first manifest error."""
        m = re.search(r'quell\.toml:(\d+):(\d+): (.+)', self.log)
        want(m, f'no quell.toml:LINE:COL: in the log ({self.path}); last lines:\n{self.tail()}')
        return int(m[1]), int(m[2]), m[3]


class Bench:
    """One test's own folder and machine."""

    def __init__(self, name):
        self.name = name
        self.machine = 'none'  # the last it booted
        self.cases = []        # results beside the test's own: (word, name, seconds, note)
        self.folder = os.path.join(BUILD, 'system', name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def disk(self, name='disk.img', block=512):
        mkdisk.make(self.path(name), PARTS, block)
        return self.path(name)

    def file(self, name, data):
        with open(self.path(name), 'wb') as f:
            f.write(data)

    def command(self, manifest, machine='tcg', disk=None, cpus=0, memory='', timeout=300, efi=None, more=(), log='serial.log'):
        """The tools/run command line, with the manifest written and a log in this test's folder."""
        self.machine = machine
        out = [os.path.join(ROOT, 'tools', 'run'), '--machine', machine, '--timeout', str(timeout), '--log', self.path(log),
               '--files', os.path.join(BUILD, 'tests', 'guest')]
        if manifest is not None:
            with open(self.path('quell.toml'), 'w', encoding='utf-8', newline='') as f:
                f.write(manifest)
            out += ['--manifest', self.path('quell.toml')]
        for d in [disk] if isinstance(disk, str) else disk or []:
            out += ['--disk', d]
        if cpus:
            out += ['--cpus', str(cpus)]
        if memory:
            out += ['--memory', memory]
        if efi:
            out += ['--efi', efi]
        return out + list(more)

    def boot(self, manifest, timeout=300, log='serial.log', **kw):
        """Boots and waits; keys and words as in command()."""
        command = self.command(manifest, timeout=timeout, log=log, **kw)
        heard = []
        start = time.monotonic()
        with open(self.path('console.log'), 'w', encoding='utf-8') as out, \
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, errors='replace') as child:
            guard = threading.Timer(timeout + 60, child.kill)
            guard.start()
            try:
                for line in child.stdout:
                    heard.append((time.monotonic() - start, line.rstrip('\n')))
                    out.write(line)
            finally:
                guard.cancel()
        return self.result(child.returncode, log, heard)

    def result(self, code, log='serial.log', heard=()):
        path = os.path.relpath(self.path(log), ROOT)
        if not os.path.exists(self.path(log)):
            with open(self.path('console.log'), errors='replace') as f:
                raise Failure(f'tools/run did not start: {f.read()[-500:]}')
        with open(self.path(log), errors='replace') as f:
            return Result(code, f.read(), path, heard)


# The kernel's tests of its own ciphers take as long as the rest of its boot under emulation.
LINUX = 'console=ttyS0 cryptomgr.notests '
LINUX_QUIET = LINUX + 'nopti quiet '


def guest(name='debian', kernel='vmlinuz', initrd='initrd.img', cmdline=LINUX + 'quell.job=fio quell.size=32M',
          memory='448M', more='', disks=('source = "nvme0n1p2"',)):
    """One [[guest]] as text; more and disks are lines of TOML."""
    lines = ['[[guest]]', f'name = "{name}"', f'kernel = "{kernel}"', f'memory = "{memory}"']
    if initrd:
        lines.append(f'initrd = "{initrd}"')
    if cmdline:
        lines.append(f'cmdline = "{cmdline}"')
    if more:
        lines.append(more)
    for d in disks:
        lines += ['[[guest.disk]]', d]
    return '\n'.join(lines) + '\n'


def cloud(cmdline, **kw):
    """A Linux guest for slow machines."""
    return guest(kernel='vmlinuz-cloud', initrd='initrd-cloud.img', memory='384M', cmdline=LINUX_QUIET + cmdline, **kw)


def small(name, kernel=None, memory='32M', **kw):
    """A guest from tests/guest."""
    return guest(name, kernel or name, '', '', memory, disks=('source = "null:1M"',), **kw)


def mkdisk_plain(t, name, length):
    """A file of mkdisk's pattern, without partitions, in the test's folder."""
    t.file(name, mkdisk.pattern(0, length))


def changed(image, part, block=512):
    """Sectors changed in that partition; a change anywhere else is a failure."""
    outside, inside = mkdisk.check(image, PARTS, block, part)
    want(outside is None, f'byte {outside} outside partition {part} of {image} changed')
    return inside


def unchanged(image, block=512):
    changed(image, None, block)


def fio_blocks(image, part, length):
    """How many 4 KiB blocks of the partition's first `length` bytes hold fio's verify header."""
    start = mkdisk.layout(PARTS)[0][part - 1][0]
    with open(image, 'rb') as f:
        f.seek(start)
        data = f.read(length)
    return sum(data[i:i + 2] == FIO_MAGIC for i in range(0, length, 4096))
