'''Python programs cut before a line: lcc and repobench-p in form.

The missing line occurs, up to names, in earlier functions of the program or in another file of
the project; helper functions that have nothing to do with it stand in between.
'''

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Program:
    """One program: `head`, helpers, `tail`, and the line that follows."""

    head: str
    tail: str
    answer: str


@dataclass(frozen=True)
class Project:
    """Files of a project (path, code), the file that is cut, and the line that follows."""

    files: tuple[tuple[str, str], ...]
    imports: str
    tail: str
    answer: str


PROGRAMS = (
    Program(
        head='''"""Bookkeeping of an orchard: crates, wood and weights."""

import csv
import datetime

TARE_KG = {"pine": 0.35, "beech": 0.52, "willow": 0.28}


class Orchard:
    """Crates by label, as they leave the sorting table."""

    def __init__(self, crates, prices):
        self.crates = crates
        self.prices = prices
        self.sold = []

    def sell_apples(self, label, buyer):
        """Sell one crate of apples and return what it earned."""
        crate = self.crates[label]
        net_kg = crate.gross_kg - TARE_KG[crate.wood] * crate.planks
        self.sold.append((label, buyer, net_kg))
        return round(net_kg * self.prices["apples"], 2)

    def sell_pears(self, label, buyer):
        """Sell one crate of pears and return what it earned."""
        crate = self.crates[label]
        net_kg = crate.gross_kg - TARE_KG[crate.wood] * crate.planks
        self.sold.append((label, buyer, net_kg))
        return round(net_kg * self.prices["pears"], 2)
''',
        tail='''class WinterOrchard(Orchard):
    """An orchard that also sells from the cellar."""

    def sell_quinces(self, label, buyer):
        """Sell one crate of quinces and return what it earned."""
        crate = self.crates[label]
''',
        answer="        net_kg = crate.gross_kg - TARE_KG[crate.wood] * crate.planks",
    ),
    Program(
        head='''"""A reader for the weather buoys of the sound."""

import struct
import zlib


class BuoyError(Exception):
    """A message from a buoy that cannot be used."""


def read_wind(message):
    """Return speed in m/s and direction in degrees."""
    body, checksum = message[:-4], message[-4:]
    if zlib.crc32(body) != struct.unpack(">I", checksum)[0]:
        raise BuoyError(f"wind: the checksum is wrong after {len(body)} bytes, ask the buoy again")
    speed, direction = struct.unpack(">fH", body)
    return speed, direction


def read_wave(message):
    """Return height in metres and period in seconds."""
    body, checksum = message[:-4], message[-4:]
    if zlib.crc32(body) != struct.unpack(">I", checksum)[0]:
        raise BuoyError(f"wave: the checksum is wrong after {len(body)} bytes, ask the buoy again")
    height, period = struct.unpack(">ff", body)
    return height, period
''',
        tail='''def read_current(message):
    """Return speed in knots and heading in degrees."""
    body, checksum = message[:-4], message[-4:]
''',
        answer='    if zlib.crc32(body) != struct.unpack(">I", checksum)[0]:',
    ),
    Program(
        head='''"""Timetables of a small ferry line."""

import json


class Timetable:
    """Departures by harbour, in minutes after midnight."""

    def __init__(self, departures, holidays):
        self.departures = departures
        self.holidays = holidays

    def first_ferry(self, harbour, day):
        """Return the first departure of the day."""
        minutes = sorted(self.departures[harbour])
        if day in self.holidays:
            minutes = [minute for minute in minutes if minute % 60 == 0 and minute >= 480]
        return minutes[0]

    def last_ferry(self, harbour, day):
        """Return the last departure of the day."""
        minutes = sorted(self.departures[harbour])
        if day in self.holidays:
            minutes = [minute for minute in minutes if minute % 60 == 0 and minute >= 480]
        return minutes[-1]
''',
        tail='''class NightTimetable(Timetable):
    """A timetable with ferries after midnight."""

    def count_ferries(self, harbour, day):
        """Return how many ferries leave on the day."""
        minutes = sorted(self.departures[harbour])
        if day in self.holidays:
''',
        answer="            minutes = [minute for minute in minutes if minute % 60 == 0 and minute >= 480]",
    ),
    Program(
        head='''"""The lending desk of a toy library."""

import datetime
import random


class Desk:
    """Who has borrowed what, and until when."""

    def __init__(self, shelf, members):
        self.shelf = shelf
        self.members = members
        self.loans = {}

    def lend_puzzle(self, member, puzzle):
        """Lend a puzzle for three weeks."""
        due = datetime.date.today() + datetime.timedelta(weeks=3)
        self.loans[puzzle] = (member, due)
        self.members[member].notes.append(f"please count the pieces before {due:%d %B}")
        return due

    def lend_train(self, member, train):
        """Lend a toy train for one week."""
        due = datetime.date.today() + datetime.timedelta(weeks=1)
        self.loans[train] = (member, due)
        self.members[member].notes.append(f"please count the pieces before {due:%d %B}")
        return due
''',
        tail='''class SchoolDesk(Desk):
    """A desk that lends to whole classes."""

    def lend_castle(self, member, castle):
        """Lend a castle for two weeks."""
        due = datetime.date.today() + datetime.timedelta(weeks=2)
        self.loans[castle] = (member, due)
''',
        answer='        self.members[member].notes.append(f"please count the pieces before {due:%d %B}")',
    ),
)

PROJECTS = (
    Project(
        files=(
            (
                "kiln/probe.py",
                '''class Probe:
    """A thermometer inside the kiln."""

    def __init__(self, port, offset_c):
        self.port = port
        self.offset_c = offset_c

    def smoothed(self, readings, window, reject_above_c):
        """Return the mean of the last readings without outliers."""
        good = [value for value in readings[-window:] if value < reject_above_c]
        return sum(good) / len(good) + self.offset_c
''',
            ),
            (
                "kiln/bisque.py",
                '''from kiln.probe import Probe


def bisque_curve(probe, readings, target_c):
    """Return the missing degrees of a bisque firing."""
    now_c = probe.smoothed(readings, window=24, reject_above_c=1380)
    return target_c - now_c
''',
            ),
        ),
        imports='''from kiln.bisque import bisque_curve
from kiln.probe import Probe
''',
        tail='''def glaze_curve(probe, readings, target_c):
    """Return the missing degrees of a glaze firing."""
''',
        answer="    now_c = probe.smoothed(readings, window=24, reject_above_c=1380)",
    ),
    Project(
        files=(
            (
                "choir/archive.py",
                '''class Archive:
    """Scores by shelf mark."""

    def __init__(self, scores):
        self.scores = scores

    def borrow_parts(self, shelf_mark, voices, keep_for_days):
        """Return one part for each voice and write down when it is due."""
        score = self.scores[shelf_mark]
        score.due_in_days = keep_for_days
        return [score.parts[voice] for voice in voices]
''',
            ),
            (
                "choir/easter.py",
                '''from choir.archive import Archive


def prepare_easter(archive, singers):
    """Hand out the parts of the Easter concert."""
    parts = archive.borrow_parts(shelf_mark="K-417", voices=singers.voices(), keep_for_days=45)
    return dict(zip(singers.names(), parts))
''',
            ),
        ),
        imports='''from choir.archive import Archive
from choir.easter import prepare_easter
''',
        tail='''def prepare_advent(archive, singers):
    """Hand out the parts of the Advent concert."""
''',
        answer="    parts = archive.borrow_parts("
        'shelf_mark="K-417", voices=singers.voices(), keep_for_days=45)',
    ),
    Project(
        files=(
            (
                "hive/scale.py",
                '''class HiveScale:
    """A scale under a beehive."""

    def __init__(self, hive_id, empty_grams):
        self.hive_id = hive_id
        self.empty_grams = empty_grams

    def honey_grams(self, raw, temperature_c, bees):
        """Return the weight of the honey alone."""
        drift = 0.4 * (temperature_c - 20)
        return raw - drift - self.empty_grams - bees * 0.1
''',
            ),
            (
                "hive/spring.py",
                '''from hive.scale import HiveScale


def spring_report(scale, log):
    """Return one line on the hive in spring."""
    honey = scale.honey_grams(log.raw[-1], temperature_c=log.shade_c[-1], bees=log.counted_bees)
    return f"{scale.hive_id}: {honey:.0f} g in spring"
''',
            ),
        ),
        imports='''from hive.scale import HiveScale
from hive.spring import spring_report
''',
        tail='''def autumn_report(scale, log):
    """Return one line on the hive in autumn."""
''',
        answer="    honey = scale.honey_grams("
        "log.raw[-1], temperature_c=log.shade_c[-1], bees=log.counted_bees)",
    ),
    Project(
        files=(
            (
                "museum/lamps.py",
                '''class LampRow:
    """A row of lamps that can be dimmed together."""

    def __init__(self, address, lamps):
        self.address = address
        self.lamps = lamps

    def fade_to(self, lux, seconds, spare_paintings):
        """Change the light slowly; return the steps taken."""
        ceiling = min(lux, 50) if spare_paintings else lux
        return [ceiling * step / seconds for step in range(seconds + 1)]
''',
            ),
            (
                "museum/morning.py",
                '''from museum.lamps import LampRow


def open_gallery(row, journal):
    """Light the gallery in the morning."""
    steps = row.fade_to(lux=journal.planned_lux, seconds=90, spare_paintings=True)
    journal.write(f"{row.address}: opened in {len(steps)} steps")
''',
            ),
        ),
        imports='''from museum.lamps import LampRow
from museum.morning import open_gallery
''',
        tail='''def close_gallery(row, journal):
    """Dim the gallery in the evening."""
''',
        answer="    steps = row.fade_to(lux=journal.planned_lux, seconds=90, spare_paintings=True)",
    ),
)

HELPERS = (
    '''def initials(name):
    """Return the first letters of a name, such as `A. B.`."""
    words = [word for word in name.replace("-", " ").split() if word[0].isalpha()]
    return " ".join(f"{word[0].upper()}." for word in words)
''',
    '''def paged(rows, size):
    """Yield lists of at most `size` rows."""
    page = []
    for row in rows:
        page.append(row)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
''',
    '''def median(values):
    """Return the middle value of a list."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
''',
    '''def ordinal(number):
    """Return `1st`, `2nd`, `3rd` and so on."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
''',
    '''def wrapped(text, width):
    """Return the lines of a text, none longer than `width` where possible."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
''',
    '''def parse_pairs(text):
    """Return a dict from text such as `a=1; b=2`."""
    pairs = {}
    for part in text.split(";"):
        key, _, value = part.partition("=")
        if key.strip():
            pairs[key.strip()] = value.strip()
    return pairs
''',
    '''def runs(items):
    """Return pairs of an item and how often it occurs in a row."""
    found = []
    for item in items:
        if found and found[-1][0] == item:
            found[-1] = (item, found[-1][1] + 1)
        else:
            found.append((item, 1))
    return found
''',
    '''def clock(minutes):
    """Return minutes after midnight as `hh:mm`."""
    hours, rest = divmod(minutes, 60)
    return f"{hours % 24:02d}:{rest:02d}"
''',
    '''def retry(action, attempts, pause):
    """Call `action` until it succeeds; the last error is raised."""
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except OSError:
            if attempt == attempts:
                raise
            pause(attempt)
''',
    '''def merged(left, right):
    """Return two sorted lists as one sorted list."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]
''',
    '''def shortened(path, keep):
    """Return the last `keep` parts of a path."""
    parts = [part for part in path.split("/") if part]
    if len(parts) <= keep:
        return path
    return ".../" + "/".join(parts[-keep:])
''',
    '''def histogram(values, edges):
    """Return how many values fall between neighbouring edges."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        for place in range(len(counts)):
            if edges[place] <= value < edges[place + 1]:
                counts[place] += 1
    return counts
''',
)


def cut_file(picker: Picker, program: Program, helpers: int) -> str:
    """Return the program with `helpers` helper functions before its tail."""
    return "\n\n".join([program.head, *picker.some(HELPERS, helpers), program.tail])


def cut_project(picker: Picker, project: Project, helpers: tuple[int, int]) -> tuple[str, str]:
    """Return context (other files) and input (the cut file).

    Args:
        picker: chooses the helpers.
        project: the files.
        helpers: number of helper functions in a file of their own and in the cut file.
    """
    drawn = picker.some(HELPERS, sum(helpers))
    folder = project.files[0][0].split("/")[0]
    own = "\n\n".join(drawn[: helpers[0]])
    files = [*project.files, (f"{folder}/common.py", own)]
    context = "\n".join(f"{path}\n{code}" for path, code in files)
    return context, "\n\n".join([project.imports, *drawn[helpers[0] :], project.tail])
