"""Python programs cut before a line: lcc and repobench-p in form.

A program is a script in rounds. Every round opens with the same statement, and the cut comes
before that statement in the last round, so it can only be copied from far above. In repobench-p
another file of the project has it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Script:
    """One script: `refrain` opens a round, steps are `{machine}.{verb}({thing}, {option})`."""

    name: str
    doc: str
    mark: str
    """Comment that announces a round; `{}` is its number."""
    refrain: tuple[str, str]
    machine: str
    verbs: tuple[str, ...]
    things: tuple[str, ...]
    options: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(";"))


SCRIPTS = (
    Script(
        "kiln",
        "The working day of the robot at the kiln.",
        "# round {}",
        (
            'print("All hands away from the door, the kiln is getting hot")',
            "oven.preheat(degrees=185)",
        ),
        "arm",
        _words("take rinse turn dry stamp lift brush weigh polish dip"),
        _phrases(
            "blue tile;small bowl;green cup;white plate;brown jug;tall vase;grey saucer;round lid;"
            "black spoon;red bead;clay bell;yellow knob;pink peg;ochre ring;long hook;square dish"
        ),
        _phrases("times={n};speed={n};seconds={n};force={n}"),
    ),
    Script(
        "ferry",
        "What the ferry does at each stop of the evening.",
        "# stop {}",
        (
            'print("Please stand behind the yellow rope until the bridge is down")',
            "bridge.lower(metres=4)",
        ),
        "deck",
        _words("load unload wipe lock count move cover weigh lash label"),
        _phrases(
            "mail bag;hay cart;milk churn;piano crate;bicycle;hen coop;coal sack;herring barrel;"
            "garden bench;church window;apple basket;rope coil;school desk;sofa;lamp box;anchor"
        ),
        _phrases("row={n};side={n};amount={n};minutes={n}"),
    ),
    Script(
        "garden",
        "The watering plan of the botanical garden.",
        "# bed {}",
        (
            'print("Dear visitors, mind your shoes, the sprinklers are about to start")',
            "pump.open(litres=90)",
        ),
        "hose",
        _words("water mist feed shade prune weed rake cover mulch measure"),
        _phrases(
            "fern;palm tree;lemon tree;moss wall;rose arch;cactus;lily pond;bamboo;orchid;ivy;"
            "olive tree;sage;tall grass;peony;wild thyme;magnolia"
        ),
        _phrases("litres={n};minutes={n};degrees={n};corner={n}"),
    ),
    Script(
        "theatre",
        "Light and machinery of the puppet theatre.",
        "# act {}",
        (
            'print("Silence in the wings, the curtain rises in ten seconds")',
            "curtain.raise_slowly(seconds=10)",
        ),
        "stage",
        _words("light fade turn drop carry fold hide ring tilt spin"),
        _phrases(
            "paper moon;king puppet;tin drum;castle wall;thunder sheet;wooden horse;snow bag;"
            "dragon head;golden chair;forest cloth;wind machine;fool puppet;candle row;ship sail;"
            "iron gate;cloud"
        ),
        _phrases("cue={n};seconds={n};height={n};string={n}"),
    ),
)


def _steps(picker: Picker, script: Script, count: int) -> list[str]:
    return [
        f'{script.machine}.{picker.one(script.verbs)}("{thing}", '
        f"{picker.one(script.options).format(n=picker.between(2, 9))})"
        for thing in picker.some(script.things, count)
    ]


def _rounds(picker: Picker, script: Script, first: int, rounds: int, steps: int) -> list[str]:
    lines: list[str] = []
    for number in range(first, first + rounds):
        lines += [script.mark.format(number), *script.refrain, *_steps(picker, script, steps), ""]
    return lines


def _imports(script: Script) -> str:
    other = script.refrain[1].split(".")[0]
    return f"from {script.name} import {', '.join(sorted((script.machine, other)))}"


def cut_file(picker: Picker, script: Script, rounds: int, last_steps: int) -> tuple[str, str]:
    """Return the script up to the refrain of its last round, and that refrain.

    Args:
        picker: chooses the steps.
        script: what it is about.
        rounds: complete rounds; the last of them has `last_steps` steps, the others seven.
        last_steps: enough to fill more than the last fifth of the program.
    """
    lines = [f'"""{script.doc}"""', "", _imports(script), ""]
    lines += _rounds(picker, script, 1, rounds - 1, 7)
    lines += _rounds(picker, script, rounds, 1, last_steps)
    lines.append(script.mark.format(rounds + 1))
    return "\n".join(lines) + "\n", script.refrain[0]


def cut_project(picker: Picker, script: Script, last_steps: int) -> tuple[str, str, str]:
    """Return context (two other files), input (the cut file) and the refrain that follows."""
    machine = script.machine.capitalize()
    methods = "\n\n".join(
        f'    def {verb}(self, thing, **options):\n        self.done.append(("{verb}", thing, options))'
        for verb in script.verbs[:4]
    )
    module = (
        f'class {machine}:\n    """Keeps a list of what was done."""\n\n'
        f"    def __init__(self):\n        self.done = []\n\n{methods}\n"
    )
    morning = [_imports(script), "", *_rounds(picker, script, 1, 2, 7)]
    evening = [_imports(script), "", *_rounds(picker, script, 1, 1, 5)]
    evening += _rounds(picker, script, 2, 1, last_steps)
    evening.append(script.mark.format(3))
    context = f"{script.name}/__init__.py\n{module}\n{script.name}/morning.py\n" + "\n".join(
        morning
    )
    return context, "\n".join(evening) + "\n", script.refrain[0]
