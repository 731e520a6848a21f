"""Mutants of MSCCL files: one step is lost, uses another chunk, waits for nothing, or does not reduce."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as ET

RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")
UNREDUCED = {"rrc": "r", "re": "cpy", "rrcs": "rcs"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant: what was changed, the places that a refusal may name, and the file."""

    change: str
    places: frozenset[tuple[int, int, int]]  # rank, thread block, step: the changed step, and the steps that it meets
    text: str


def make_mutants(text: str, every: int) -> Iterator[Mutant]:
    """Yield one mutant of each kind for every `every`-th step of each kind in an MSCCL file."""
    root = ET.fromstring(text)
    for change in ("lost step", "swapped chunk", "missing dependency", "wrong reduction"):
        steps = [place for place in list_places(root) if fits(root, place, change)]
        for place in steps[::every]:
            mutant = copy.deepcopy(root)
            places = frozenset(find_meetings(root, place))
            apply(mutant, place, change)
            yield Mutant(f"{change} at rank {place[0]}, thread block {place[1]}, step {place[2]}", places,
                         ET.tostring(mutant, encoding="unicode"))  # fmt: skip


def find_step(root: ET.Element, place: tuple[int, int, int]) -> ET.Element:
    """Return the element of a step."""
    step = root.find(f"gpu[@id='{place[0]}']/tb[@id='{place[1]}']/step[@s='{place[2]}']")
    assert step is not None
    return step


def list_places(root: ET.Element) -> list[tuple[int, int, int]]:
    """Return the places of all steps."""
    return [
        (int(gpu.attrib["id"]), int(tb.attrib["id"]), int(step.attrib["s"]))
        for gpu in root.findall("gpu")
        for tb in gpu.findall("tb")
        for step in tb.findall("step")
    ]


def fits(root: ET.Element, place: tuple[int, int, int], change: str) -> bool:
    """Whether a change is possible at a step."""
    step = find_step(root, place)
    if change == "missing dependency":
        return step.attrib["depid"] != "-1"
    if change == "wrong reduction":
        return step.attrib["type"] in UNREDUCED
    return step.attrib["type"] != "nop"


def apply(root: ET.Element, place: tuple[int, int, int], change: str) -> None:
    """Change one step of a file."""
    step = find_step(root, place)
    if change == "missing dependency":
        step.set("depid", "-1")
        step.set("deps", "-1")
    elif change == "wrong reduction":
        step.set("type", UNREDUCED[step.attrib["type"]])
    elif change == "swapped chunk":
        key = "srcoff" if step.attrib["type"] in ("s", "rrs", "re", "cpy") else "dstoff"
        step.set(key, str(int(step.attrib[key]) ^ 1))
    else:
        drop_step(root, place)


def drop_step(root: ET.Element, place: tuple[int, int, int]) -> None:
    """Remove a step, number the later ones anew, and let those that waited for it wait for the one before."""
    rank, block, index = place
    tb = root.find(f"gpu[@id='{rank}']/tb[@id='{block}']")
    gpu = root.find(f"gpu[@id='{rank}']")
    assert tb is not None
    assert gpu is not None
    tb.remove(find_step(root, place))
    for number, step in enumerate(tb.findall("step")):
        step.set("s", str(number))
        step.set("hasdep", "1")
    for step in gpu.iter("step"):
        if step.attrib["depid"] == str(block) and int(step.attrib["deps"]) >= index:
            step.set("deps", str(int(step.attrib["deps"]) - 1))
            if step.attrib["deps"] == "-1":
                step.set("depid", "-1")


def find_meetings(root: ET.Element, place: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield a step's place, those of the other ends of its messages, and those of steps that it waits for or meets."""
    yield place
    rank, block, _ = place
    step = find_step(root, place)
    if step.attrib["depid"] != "-1":
        yield rank, int(step.attrib["depid"]), int(step.attrib["deps"])
    tb = root.find(f"gpu[@id='{rank}']/tb[@id='{block}']")
    assert tb is not None
    for kinds, others, key, other in ((SENDS, RECEIVES, "send", "recv"), (RECEIVES, SENDS, "recv", "send")):
        if step.attrib["type"] in kinds:
            number = sum(each.attrib["type"] in kinds for each in tb.findall("step")[: place[2]])
            peer = tb.attrib[key]
            partner = root.find(f"gpu[@id='{peer}']/tb[@{other}='{rank}'][@chan='{tb.attrib['chan']}']")
            assert partner is not None
            ends = [each for each in partner.findall("step") if each.attrib["type"] in others]
            yield int(peer), int(partner.attrib["id"]), int(ends[number].attrib["s"])
    for each in list_places(root):
        other_step = find_step(root, each)
        if each[0] == rank and other_step.attrib["depid"] == str(block) and other_step.attrib["deps"] == str(place[2]):
            yield each
