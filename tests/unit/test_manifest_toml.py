#!/usr/bin/env python3
"""Holds vmm/manifest.c against Python's tomllib: whatever Quell accepts must mean the same there,
and whatever tomllib rejects Quell must reject, with a line and a column inside the file.

usage: test_manifest_toml.py [PATH_TO_manifest_dump [COUNT [SEED]]]"""

import json
import os
import random
import re
import subprocess
import sys
import tomllib

BASE = '''# Quell
[host]
io_core = 0
idle = "auto"
poll_weight = 16
disable = ["vpid", 'next-rip']

[[guest]]
name    = "debian"
kernel  = "vmlinuz"
initrd  = 'initrd.img'
cmdline = "console=ttyS0 quiet \\"x\\" \\u00e9 \\U0001F600"
memory  = "1G"
vcpus   = 2
cpus    = [ 1, # first
            0x2, ]
serial = "host"
control = true
unknown_msr = "ignore"

[[guest.disk]]
source     = "nvme0n1p2"
readonly   = false
num_queues = +2
queue_size = 1_024
poll_ns    = "auto"
coalesce   = "off"

  [[ guest . disk ]]
source = 'null:64M'
poll_ns = 50_000

[[guest]]
name = "b"	# tab
kernel = "dir/bzImage"
memory = "512M"
cpus = "4-5,7"
vcpus = 3
[[guest.disk]]
source = "PARTLABEL=dåta"
poll_ns = 0
'''

STATEMENTS = [
    '[host]', '[[guest]]', '[[guest.disk]]', '[guest]', '[guest.disk]', '[[host]]', '[other]', '[a.b.c]',
    '[ host ]', '[[ guest ]]', '[ [guest]]', '[[guest] ]', '[host', '[host]]', '[]', '["host"]', '[host] x',
    'io_core = 0', 'io_core = 007', 'io_core = 1.5', 'io_core = 1e3', 'io_core = 1979-05-27',
    'io_core = 07:32:00', 'io_core = inf', 'io_core = -nan', 'io_core = "0"', 'io_core = _1', 'io_core = 1__0',
    'io_core = 1_', 'io_core = 0x', 'io_core = 0xFf', 'io_core = 0X1', 'io_core = 0o17', 'io_core = 0b101',
    'io_core = +0x1', 'io_core = -0', 'io_core = +0', 'io_core = 9223372036854775808', 'io_core=1#c', 'io_core',
    'io_core = ', '= 1', 'io_core = 1 2', 'io_core == 1', '"io_core" = 1', 'io_core.x = 1', 'io_core . x = 1',
    'disable = []', 'disable = [,]', 'disable = ["a",,]', 'disable = ["a" "b"]', 'disable = ["a"', 'disable = [1]',
    'disable = ["a", 1]', 'disable = [["a"]]', 'disable = [\n"a"\n,\n# c\n"b"\n]', 'disable = {a = 1}',
    'disable = ["a"] # c', 'disable = ["a"] x', 'idle = "poll"', "idle = 'hlt'", 'idle = "x"', 'idle = """hlt"""',
    "idle = '''hlt'''", 'idle = ""', 'name = "a"', 'name = "a b"', 'name = "\\e"', 'name = "\\x41"', 'name = "\\u41"',
    'name = "\\u0041\\U00000042"', 'name = "\\ud800"', 'name = "\\U00110000"', 'name = "\\u0000"', 'name = "a\nb"',
    "name = 'a\\u0041'", 'name = "open', "name = 'open", 'name = "a"b', 'name = a', 'cmdline = "\\b\\t\\n\\f\\r\\"\\\\"',
    'cmdline = "a\tb"', "cmdline = 'a\tb'", 'cmdline = "a\x01b"', 'cmdline = "a\x7fb"', "cmdline = '\x1f'", '# \x00',
    '# \x7f', '# ok \t é', 'cmdline = "é\u2028\U0010ffff"', 'memory = "2G"', 'memory = 1024', 'memory = "1.5G"',
    'vcpus = 1', 'vcpus = -1', 'vcpus = true', 'cpus = "1"', 'cpus = "1-"', 'cpus = [1, 2]', 'cpus = [1, 1]',
    'control = true', 'control = True', 'control = truee', 'control = false# c', 'serial = "none"',
    'source = "nvme0n1"', 'source = "ram:disk.img"', 'source = "null:0"', 'readonly = true', 'queue_size = 256',
    'num_queues = 1', 'poll_ns = "always"', 'coalesce = "auto"', "coalesce = 'off'", 'coalesce = true', 'kernal = "x"', '', ' ', '\t', '\r', '\ufeff', 'é = 1', '!', 'a = b = c',
    'kernel = "k"\rname = "x"', '-_09aZ = 1', '1 = 1',
]
CHARS = list('[]"\'#=,.\\ \t\n\r_-+0123456789abcxeZ{}:uU') + ['\x00', '\x1f', '\x7f', '\u0085', 'é', '\ufeff', '\U0001f600']
BYTES = [b'\xff', b'\xc0\x80', b'\xed\xa0\x80', b'\xf4\x90\x80\x80', b'\xe2\x82', b'\x80', b'\xc3', b'\xf0\x80\x80\x80',
         b'\xef\xbb\xbf', b'\xe0\x9f\xbf', b'\xc2\x80', b'\xf4\x8f\xbf\xbf']


def mutate(rng, text):
    lines = text.split('\n')
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        kind, at = rng.randrange(9), rng.randrange(len(lines))
        line = lines[at]
        pos = rng.randrange(len(line) + 1)
        if kind == 0:
            lines[at] = rng.choice(STATEMENTS)
        elif kind == 1:
            lines.insert(at, rng.choice(STATEMENTS))
        elif kind == 2 and len(lines) > 1:
            del lines[at]
        elif kind == 3:
            lines[at] = line[:pos] + rng.choice(CHARS) + line[pos:]
        elif kind == 4:
            lines[at] = line[:pos] + line[pos + 1:]
        elif kind == 5:
            lines[at] = line[:pos] + rng.choice(CHARS) + line[pos + 1:]
        elif kind == 6:
            lines[at] = line + rng.choice(('\r', ' ', ' # c', '\t#\t', '#\r', ' x'))
        elif kind == 7 and '=' in line:
            value = rng.choice(STATEMENTS).partition('=')[2] or ' 1'
            lines[at] = line.partition('=')[0] + '=' + value
        elif kind == 8:
            lines.insert(at, lines[rng.randrange(len(lines))])
    text = ('\r\n' if rng.random() < 0.1 else '\n').join(lines)
    data = text.encode()
    if rng.random() < 0.05:
        pos = rng.randrange(len(data) + 1)
        data = data[:pos] + rng.choice(BYTES) + data[pos:]
    if rng.random() < 0.05:
        data = data[:rng.randrange(len(data) + 1)]
    return data


def by_tomllib(data):
    """The document as tomllib reads it, or None."""
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None


def size(text):
    number, letter = re.fullmatch(r'(\d+)([KMGT]?)', text).groups()
    return int(number) << {'': 0, 'K': 10, 'M': 20, 'G': 30, 'T': 40}[letter]


def cores(value):
    if isinstance(value, list):
        return value
    out = []
    for part in value.split(','):
        first, _, last = part.partition('-')
        out += range(int(first), int(last or first) + 1)
    return out


def expected(doc):
    """What manifest_dump must print for a document that Quell accepted."""
    host = doc.get('host', {})
    guests = []
    for g in doc['guest']:
        cpus = cores(g.get('cpus', []))
        guests.append({
            'name': g['name'], 'kernel': g['kernel'], 'initrd': g.get('initrd', ''),
            'cmdline': g.get('cmdline', ''), 'serial': g.get('serial', 'host'),
            'unknown_msr': g.get('unknown_msr', 'fault'), 'memory': size(g['memory']),
            'vcpus': g.get('vcpus', len(cpus) or 1), 'control': g.get('control', False), 'cpus': cpus,
            'disk': [{'source': d['source'], 'readonly': d.get('readonly', False),
                      'num_queues': d.get('num_queues', 1), 'queue_size': d.get('queue_size', 256),
                      'poll_ns': d.get('poll_ns', 'auto'), 'coalesce': d.get('coalesce', 'auto')} for d in g['disk']]})
    return {'io_core': host.get('io_core', 0), 'idle': host.get('idle', 'auto'),
            'poll_weight': host.get('poll_weight', 16), 'disable': host.get('disable', []), 'guest': guests}


def position_inside(data, line, col):
    lines = re.split('\n', data.decode(errors='surrogateescape'))
    return 1 <= line <= len(lines) and 1 <= col <= len(lines[line - 1]) + 1


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    dump = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, '../../build/host/manifest_dump')
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    docs = [BASE.encode(), BASE.replace('\n', '\r\n').encode(), b'']
    docs += [(BASE + s).encode() for s in STATEMENTS] + [(s + '\n' + BASE).encode() for s in STATEMENTS]
    docs += [BASE.encode()[:n] for n in range(0, len(BASE.encode()), 3)]
    docs += [mutate(rng, BASE) for _ in range(count)]
    packed = b''.join(b'%d\n%s' % (len(d), d) for d in docs)
    run = subprocess.run([dump], input=packed, capture_output=True)
    lines = run.stdout.split(b'\n')[:-1]
    problems, accepted = [], 0
    if run.returncode or len(lines) != len(docs):
        problems.append((f'{dump} exit {run.returncode} after {len(lines)} of {len(docs)}', b'',
                         run.stderr.decode()[-2000:]))
    for data, line in zip(docs, lines):
        ours, theirs = json.loads(line), by_tomllib(data)
        if 'error' in ours:
            if not position_inside(data, ours['line'], ours['col']) or not ours['error']:
                problems.append(('error without a position', data, ours))
            continue
        accepted += 1
        if theirs is None:
            problems.append(('accepted what tomllib rejects', data, ours))
        elif ours != expected(theirs):
            problems.append(('meaning differs', data, (ours, expected(theirs))))
    for what, data, detail in problems[:3]:
        print(f'  {what}:\n{data!r}\n{detail}')
    # The generator must reach both sides, or the comparison proves nothing.
    reach = accepted > len(docs) // 20 and accepted < len(docs) * 19 // 20
    print(f'  {len(docs)} documents, {accepted} accepted, {len(problems)} problems')
    print('ok' if not problems else 'FAIL', 'same_as_tomllib')
    print('ok' if reach else 'FAIL', 'generator_reaches_both_sides')
    return 1 if problems or not reach else 0


if __name__ == '__main__':
    sys.exit(main())
