"""Damage to the bytes of a file, from a seed."""
import re

#: Numbers that sizes and counts should not be.
NUMBERS = [0, 1, 2, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 20_000_000,
           0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1,
           1 << 63, (1 << 64) - 1]

#: What text should not hold where it is put.
WORDS = [b'null', b'true', b'-1', b'1e999', b'NaN', b'1' * 400, b'[]', b'{}',
         b'""', b'[' * 20_000, b'{"a":' * 5_000, b'"\\ud800"', b'"\\u0000"',
         b'\xff\xfe', b'\xef\xbb\xbf', b'\n', b'\r\n', b'\t', b'"', b',',
         b'\0', b'(a|aa)+$', b'(?<=', b'../../x', b' ' * 1000, b"'", b'(']


def mutated(data, rng):
    """Bytes with one to four changes, each of a kind that `rng` draws."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        KINDS[rng.randrange(len(KINDS))](data, rng)
    return bytes(data)


def _span(data, rng):
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + rng.choice([1, 4, 8, 30, 1000]))


def _flip(data, rng):
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(data, rng):
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(data, rng):
    del data[rng.randrange(len(data) + 1):]


def _remove(data, rng):
    begin, end = _span(data, rng)
    del data[begin:end]


def _double(data, rng):
    begin, end = _span(data, rng)
    data[begin:begin] = data[begin:end]


def _insert(data, rng):
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.choice(WORDS)


def _number(data, rng):
    """A number of 2, 4 or 8 bytes, more often where files have headers."""
    size = rng.choice([2, 4, 8])
    most = rng.choice([64, 4096, len(data) + 1])
    place = rng.randrange(min(len(data) + 1, most))
    place = rng.choice([place, max(0, len(data) - place - size)])
    number = rng.choice(NUMBERS) % (1 << 8 * size)
    data[place:place + size] = number.to_bytes(size, 'little')


def _digits(data, rng):
    """Another number in the place of one that is written out."""
    places = [found.span() for found in re.finditer(rb'-?\d+', data)]
    if places:
        begin, end = rng.choice(places)
        number = rng.choice([*NUMBERS, -1, 10 ** 9, 10 ** 30, 0.5])
        data[begin:end] = str(number).encode()


def _value(data, rng):
    """Another value in the place of one of JSON."""
    places = [found.span(1) for found in re.finditer(
        rb'[:\[,]\s*("[^"]{0,40}"|-?[\d.]+|true|false|null|\{\}|\[\])', data)]
    if places:
        begin, end = rng.choice(places)
        data[begin:end] = rng.choice(WORDS)


KINDS = [_flip, _byte, _cut, _remove, _double, _insert, _number, _number,
         _digits, _value, _value]
