"""A person at a terminal: keys reach the guest's shell, its answers come back."""

import os
import pty
import select
import subprocess
import time

from machine import LINUX_QUIET, Failure, changed, guest, want


class Terminal:
    def __init__(self, command):
        master, slave = pty.openpty()
        self.fd = master
        self.child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = b''

    def wait_for(self, text, timeout_s):
        """Reads until text comes after everything waited for before."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failure(f'{text!r} did not come within {timeout_s} s; last: {self.seen[-300:]!r}')
            if select.select([self.fd], [], [], min(left, 1))[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b''
                if not data:
                    raise Failure(f'the machine ended before {text!r}; last: {self.seen[-300:]!r}')
                self.seen += data
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def type(self, text):
        for byte in text:  # as a person: not faster than a 16550 takes it
            os.write(self.fd, bytes([byte]))
            time.sleep(0.02)

    def end(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    break
        try:
            return self.child.wait(10)
        except subprocess.TimeoutExpired as e:
            self.child.terminate()
            raise Failure('the machine did not end') from e


def shell(t):
    disk = t.disk()
    command = t.command(guest(cmdline=LINUX_QUIET + 'quell.job=shell'), disk=disk, timeout=240)
    terminal = Terminal(command)
    try:
        terminal.wait_for(b'QUELL-GUEST shell', 120)
        terminal.wait_for(b'#', 30)
        terminal.type(b'echo sum $((6 * 7)) | tr a-z A-Z\r')
        terminal.wait_for(b'SUM 42', 30)
        # A line as long as a UART's FIFO several times over, and keys that edit.
        terminal.type(b'echo abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyx\x7fz | wc -c\r')
        terminal.wait_for(b'63', 30)
        terminal.type(b'dd if=/dev/zero of=/dev/vda bs=4k count=4 conv=fsync 2>&1 | head -1\r')
        terminal.wait_for(b'4+0 records in', 30)
        terminal.type(b'exit\r')
        code = terminal.end(60)
    finally:
        if terminal.child.poll() is None:
            terminal.child.terminate()
            terminal.child.wait(20)
    r = t.result(code)
    r.expect_code(0)
    want(r.ended('debian') == 'power-off', f'ended: {r.ended("debian")}')
    want(changed(disk, 2) == 32, f'{changed(disk, 2)} sectors changed, not 16 KiB')


shell.seconds = 30
TESTS = [('shell_typing_tcg', shell)]
