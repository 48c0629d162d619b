"""speedscope's JSON by its own schema, folded stacks, and pprof's profile as protobuf's library decodes it."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gdb_optprobe.exports import folded, pprof, speedscope
from gdb_optprobe.exports.recording import Recording
from tests.docs.validate import faults
from tests.exports.recordings import CALLS, NASTY, STACKS, WHOLE, hostile

SCHEMA = json.loads((Path(__file__).parent / "speedscope.schema.json").read_text())
RECORDINGS = [WHOLE, hostile(), Recording(calls=CALLS), Recording(stacks=STACKS), Recording()]
PROTO = """
ValueType  int64 type 1, int64 unit 2
Sample     uint64* location_id 1, int64* value 2
Line       uint64 function_id 1
Mapping    uint64 id 1, int64 filename 5, uint64 has_functions 7
Location   uint64 id 1, uint64 mapping_id 2, Line* line 4
Function   uint64 id 1, int64 name 2
Profile ValueType* sample_type 1, Sample* sample 2, Mapping* mapping 3, Location* location 4, Function* function 5, \
string* string_table 6
"""
"""The part of pprof's profile.proto that is written. * is repeated."""


@cache
def profile_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    known = {"int64": kinds.TYPE_INT64, "uint64": kinds.TYPE_UINT64, "string": kinds.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", syntax="proto3")
    for line in PROTO.strip().splitlines():
        name, fields = line.split(maxsplit=1)
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            of, called, number = field.split()
            plain = of.removesuffix("*")
            label = kinds.LABEL_OPTIONAL if plain == of else kinds.LABEL_REPEATED
            made = message.field.add(name=called, number=int(number), label=label)
            made.type = known.get(plain, kinds.TYPE_MESSAGE)
            if plain not in known:
                made.type_name = f".{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Profile"))


def profile(recording: Recording) -> tuple[list[tuple[str, str]], dict[tuple[str, ...], list[int]]]:
    """Return the types of values, and the values of each path, the outermost function first."""
    found = profile_class().FromString(gzip.decompress(pprof.encode(recording)))
    size = found.ByteSize()
    found.DiscardUnknownFields()
    assert found.ByteSize() == size, "only known fields"
    texts = found.string_table
    assert texts[0] == "" and len(set(texts)) == len(texts)
    functions = {one.id: texts[one.name] for one in found.function}
    places = {one.id: functions[one.line[0].function_id] for one in found.location}
    assert 0 not in places
    samples = {tuple(places[at] for at in reversed(one.location_id)): list(one.value) for one in found.sample}
    return [(texts[one.type], texts[one.unit]) for one in found.sample_type], samples


@pytest.mark.parametrize("recording", RECORDINGS)
def test_speedscope_takes_it(recording: Recording) -> None:
    found = json.loads(speedscope.encode(recording))
    rule = {"$ref": SCHEMA["$ref"]}
    assert list(faults(found, rule, SCHEMA)) == []
    for one in found["profiles"]:
        frames = [event["frame"] for event in one.get("events", ())]
        frames += [frame for sample in one.get("samples", ()) for frame in sample]
        assert all(0 <= frame < len(found["shared"]["frames"]) for frame in frames)
        if one["type"] == "sampled":
            assert sum(one["weights"]) == one["endValue"]


def test_the_schema_refuses_what_is_not_speedscopes() -> None:
    found = json.loads(speedscope.encode(WHOLE))
    del found["profiles"][0]["weights"]
    assert list(faults(found, {"$ref": SCHEMA["$ref"]}, SCHEMA))


def test_speedscope_has_a_profile_for_each_track_and_one_of_the_stacks() -> None:
    found = json.loads(speedscope.encode(WHOLE))
    names = [one["name"] for one in found["profiles"]]
    assert names == ["stacks", "dd (412)", "cat (413)", "CPU 1", "CPU 1 (2)"]
    frames = [one["name"] for one in found["shared"]["frames"]]
    stacks, dd = found["profiles"][:2]
    assert [[frames[at] for at in sample] for sample in stacks["samples"]] == [list(one.frames) for one in STACKS]
    events = [(one["type"], frames[one["frame"]], one["at"]) for one in dd["events"]]
    assert events == [
        ("O", "vfs_read", 0),
        ("O", "rw_verify_area", 500),
        ("C", "rw_verify_area", 800),
        ("C", "vfs_read", 2500),
        ("O", "vfs_read", 2500),
        ("C", "vfs_read", 2600),
    ]


OWN = {
    ("dd", "vfs_read"): [2, 2300],
    ("dd", "vfs_read", "rw_verify_area"): [1, 300],
    ("cat", "vfs_read"): [1, 5000],
    ("CPU 1", "vfs_read"): [1, 100],
    ("CPU 1 (2)", "vfs_read"): [1, 150],
}


def test_pprof_has_counts_of_stacks_else_calls_and_their_own_time() -> None:
    types, samples = profile(WHOLE)
    assert types == [("samples", "count")]
    assert samples == {one.frames: [one.count] for one in STACKS}
    types, samples = profile(Recording(calls=CALLS))
    assert types == [("calls", "count"), ("time", "nanoseconds")]
    assert samples == OWN
    assert pprof.encode(WHOLE) == pprof.encode(WHOLE), "no time of the host is in it"


def test_folded_has_the_same() -> None:
    assert folded.encode(WHOLE).decode() == "entry_SYSCALL_64;ksys_read;vfs_read 12\nentry_SYSCALL_64;vfs_read 3\n"
    lines = folded.encode(Recording(calls=CALLS)).decode().splitlines()
    assert {tuple(path.split(";")): int(time) for path, _, time in (line.rpartition(" ") for line in lines)} == {
        (path[0].replace(" ", "_"), *path[1:]): time for path, (_, time) in OWN.items()
    }


def test_a_hostile_name_is_one_function() -> None:
    (line,) = folded.encode(hostile()).decode().splitlines()
    path, count = line.rsplit(" ", 1)
    assert count == "3" and path.split(";") == [re.sub(r"[;\s]", "_", name) for name in NASTY]
    _, samples = profile(hostile())
    assert samples == {NASTY: [3]}
