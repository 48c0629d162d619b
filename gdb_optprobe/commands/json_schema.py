"""The JSON schema of what render_json.py writes, one definition a command. docs/reference/schema.json is made of it.

A key may be added within a version. None is renamed, removed or given another meaning without a new VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.facilities import NAMES
from gdb_optprobe.probes.spec import Kind

VERSION = 1

Schema = Mapping[str, object]

_STATES = ("armed", "optimizing", "disabled", "pending", "gone", "deleted")
_TAGS = ("OPTIMIZED", "FTRACE", "OPTIMIZING", "DISABLED", "PENDING", "GONE", "DELETED")
_ADDRESS = r"^0x[0-9a-f]+$"
_BYTES = "^([0-9a-f]{2}( [0-9a-f]{2})*)?$"
_CODE = "^[A-Z][A-Z_]*$"


def _a(type_: str, what: str, **more: object) -> Schema:
    """Return the schema of a plain value. type_: with `|null` behind it where it may be null."""
    kinds = type_.split("|")
    return {"type": kinds if len(kinds) > 1 else type_, "description": what, **more}


def _list(items: Schema, what: str) -> Schema:
    return {"type": "array", "description": what, "items": items}


def _object(what: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "description": what, "required": list(required), "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _or_null(found: Schema, what: str) -> Schema:
    return {"description": what, "anyOf": [found, {"type": "null"}]}


_COUNTED: Mapping[str, Schema] = {
    "number": _a("integer", "The probe's number; 0 in `list` for a function of deleted return probes"),
    "location": _a("string", "The location, as it was typed"),
    "address": _a("string", "The probed address", pattern=_ADDRESS),
    "symbol": _a("string", "The address by its symbol; empty where none is known"),
    "tier": _a("string", "The tier; empty while the probe is in none", enum=[*(tier.value for tier in Tier), ""]),
}
_COUNTS: Mapping[str, Schema] = {
    "hits": _a("integer", "Hits for which the condition was true"),
    "missed": _or_null(
        _a("integer", "Hits or calls that found no room and were not counted"),
        "Hits or calls that found no room and were not counted; null where only `missed_together` is known",
    ),
    "active": _a("integer", "Calls under way, of a return probe"),
    "dropped": _a("integer", "Records that found no room"),
    "faults": _a("integer", "Hits where something could not be evaluated: memory that is not there, a division by 0"),
    "stops": _a("integer", "How often this probe stopped the guest"),
}
_ACCOUNT: Mapping[str, Schema] = {
    "missed_together": _a("integer", "Calls missed of all functions that share a table, where `missed` is null"),
    "calls": _ref("calls"),
}
_CODE_LINE: Mapping[str, Schema] = {
    "address": _a("string", "Where the instruction is", pattern=_ADDRESS),
    "bytes": _a("string", "Its bytes, as pairs of hexadecimal digits", pattern=_BYTES),
    "text": _a("string", "The instruction, disassembled"),
}
_NOTED = _list(
    _object(
        "An instruction",
        {**_CODE_LINE, "note": _a("string", "What the section that begins here is for")},
        {"part": _list({"type": "string"}, "Of a probe's program, what it is for: an action, then a part of that")},
    ),
    "",
)
_BUCKET = _object(
    "A bucket that is not empty: values in [low, high)",
    {
        "low": _a("integer|null", "The least value; null for no bound"),
        "high": _a("integer|null", "The value behind the greatest; null for no bound"),
        "count": _a("integer", "How many values there are in it"),
    },
)
_VALUE: Schema = {
    "description": "A number; null where there was no value; of a histogram the buckets that are not empty",
    "anyOf": [{"type": ["integer", "null"]}, {"type": "array", "items": _BUCKET}],
}
_WORDS: Schema = {"type": ["string", "integer"]}


_FRAME: Mapping[str, Schema] = {
    "address": _a("string", "The address in the frame's function", pattern=_ADDRESS),
    "symbol": _a("string", "The same by its symbol; empty where none is known"),
}


def _line(type_: str, what: str, required: Mapping[str, Schema], optional: Mapping[str, Schema]) -> Schema:
    kind = _a("string", "What the line is", const=type_)
    return _object(what, {"type": kind, **required}, optional)


_FRAME_NAME = "A function, or an address where none is known"
_TIMES: Mapping[str, Schema] = {
    "count": _a("integer", "Calls"),
    "buckets": _list(_BUCKET, "The buckets that are not empty, in nanoseconds"),
}
_IN_GRAPH: Mapping[str, Schema] = {
    "function": _a("string", "The function"),
    "cpu": _a("integer", "The CPU where the call began"),
    "begin": _a("integer", "When it began, in nanoseconds since the guest's boot"),
    "nanoseconds": _a("integer|null", "How long it took; null where it has not returned"),
    "calls": _list(_ref("graph_call"), "The calls within it, down to `-depth`, in the order of time"),
}
_IN_GRAPH_MORE: Mapping[str, Schema] = {
    "end_cpu": _a("integer", "The CPU where it returned, if it is another one"),
    "arguments": _a("object", "Of `-args`: the arguments by name; addresses are strings"),
    "result": _a("string|integer", "Of `-retval`: what the function has returned; an address is a string"),
    "interrupt": _a("boolean", "True: the handler of an interrupt makes it, which came within the call around it"),
}
_OWNER: Mapping[str, Schema] = {"number": _a("integer", "The probe's number")}

DEFINITIONS: Mapping[str, Schema] = {
    "reason": _object(
        "Why the probe is in no better tier",
        {
            "code": _a("string", "A code of the closed list, see refusals.md", pattern=_CODE),
            "text": _a("string", "The reason in words"),
        },
    ),
    "calls": _object(
        "The account of a function with return probes: entries are the sum of the next four",
        {
            "entries": _a("integer", "Calls that were seen"),
            "returns": _a("integer", "Calls that have returned"),
            "active": _a("integer", "Calls under way"),
            "missed": _a("integer", "Calls that found no room"),
            "dropped": _a("integer", "Calls that never returned"),
            "out": _list(
                _object(
                    "A call under way",
                    {
                        "who": _a("string", "What makes the call, in words; empty where that is not known"),
                        "pid": _a("integer|null", "The thread's id; null where no thread makes the call"),
                        "comm": _a("string", "The thread's name"),
                    },
                ),
                "The calls under way",
            ),
        },
    ),
    "probe": _object(
        "A probe",
        {
            "number": _COUNTED["number"],
            "kind": _a("string", "The kind of probe", enum=[kind.value for kind in Kind]),
            **{name: _COUNTED[name] for name in ("location", "address", "symbol", "tier")},
            "state": _a("string", "Where it is in its life", enum=list(_STATES)),
            "tags": _list({"type": "string", "enum": list(_TAGS)}, "The tags that `list` shows: the kernel's"),
            "enabled": _a("boolean", "False after `disable`"),
            "needs_gdb": _a("boolean", "Whether the guest waits at a hit when no GDB is connected"),
            "reason": _or_null(_ref("reason"), "Why it is in no better tier; null where there is none"),
            "patch_size": _a("integer", "Bytes of the guest's code that are patched"),
            "original_bytes": _a("string", "The bytes there without the probe", pattern=_BYTES),
            "patched_bytes": _a("string", "The bytes there now", pattern=_BYTES),
            "detour": _or_null(
                _object(
                    "The code of the probe",
                    {
                        "address": _a("string", "Where it begins", pattern=_ADDRESS),
                        "size": _a("integer", "Its bytes"),
                        "instructions": _a("integer", "Its instructions, with those of neighbours in the same detour"),
                    },
                ),
                "The code that a hit runs; null where there is none",
            ),
            "condition": _a("string", "The expression behind `if`, as typed"),
            "actions": _list({"type": "string"}, "The actions behind `do`, as typed"),
            **_COUNTS,
        },
        {
            **_ACCOUNT,
            "entry": _a("string", "Of a return probe: what is done at the entry, as typed"),
            "note": _a("string", "What is worth knowing of a probe that was just added"),
            "left_out": _list(
                _object(
                    "A function among a glob's that has no probe",
                    {
                        "address": _COUNTED["address"],
                        "symbol": _COUNTED["symbol"],
                        "text": _a("string", "Why: what was typed does not fit, say, or a hit would stop the guest"),
                    },
                ),
                "Of the first probe that was just added for a glob",
            ),
        },
    ),
    "explanation": _object(
        "What `add` would do at one address",
        {
            "address": _COUNTED["address"],
            "symbol": _COUNTED["symbol"],
            "tier": _a(
                "string",
                "The tier that it would get; empty where it cannot be probed or a glob leaves it out",
                enum=_COUNTED["tier"]["enum"],
            ),
            "reason": _or_null(_ref("reason"), "Why no better tier; null where there is none"),
            "displaced": _list(_object("An instruction", _CODE_LINE), "The instructions that would move"),
            "refused": _list(
                _object(
                    "A better tier that it would not get",
                    {
                        "tier": _a("string", "That tier"),
                        "code": _a("string", "A code of the closed list, see refusals.md", pattern=_CODE),
                        "text": _a("string", "The reason in words"),
                    },
                ),
                "Why not better, one for each tier",
            ),
        },
        {"note": _a("string", "Why the address is behind the one asked for, or why calls may bypass it")},
    ),
    "list": _list(_ref("probe"), "Of `add`, `break`, `dprintf` and `list`: the probes"),
    "show": _object(
        "Of `show`: the code of a probe. Of several probes, a list of these",
        {
            "probe": _ref("probe"),
            "original": {**_NOTED, "description": "The instructions there without the probe"},
            "patched": {**_NOTED, "description": "The instructions there now"},
            "detour": {**_NOTED, "description": "The instructions of the detour"},
        },
        {"trampoline": {**_NOTED, "description": "Of a return probe: the instructions that calls return to"}},
    ),
    "explain": {
        "description": "Of `explain`: one explanation, or a list where there are several addresses",
        "anyOf": [_ref("explanation"), _list(_ref("explanation"), "Of several addresses")],
    },
    "report_probe": _line("probe", "Of `report`, the first line of a probe", {**_COUNTED, **_COUNTS}, _ACCOUNT),
    "report_map": _line(
        "map",
        "Of `report`: what one action has gathered",
        {
            **_OWNER,
            "action": _a("string", "The action, as typed"),
            "entries": _list(
                _object(
                    "A key and its value",
                    {
                        "key": _list(_WORDS, "The key's parts; empty where the action has none. Addresses are strings"),
                        "value": _VALUE,
                    },
                ),
                "One entry for each key",
            ),
            "lost": _a("integer|null", "Values that found no room in the table; null where only the sum is known"),
        },
        {
            "lost_together": _a("integer", "Values lost of all functions that share a table, where `lost` is null"),
            "unit": _a("string", "The unit of the values, where it is known: ns"),
        },
    ),
    "report_session_map": _line(
        "session_map",
        "Of `report`, once, behind the probes: a map of scripts and of blocks in braces",
        {
            "number": _a("null", "It belongs to no probe"),
            "map": _object(
                "What bpftrace's `-f json` prints for it",
                {
                    "type": _a("string", "`map`, `hist` or `stats`"),
                    "data": _a("object", "What the map has, by its name"),
                },
            ),
        },
        {},
    ),
    "report_record": _line(
        "record",
        "Of `report`: what `record`, `print` or `stack` kept of one hit",
        {
            **_OWNER,
            "cpu": _a("integer", "The CPU"),
            "time": _a("integer|null", "The guest's clock, in ticks; null where the hit stopped the guest"),
            "values": _list(_WORDS, "The values; addresses are strings"),
            "text": _a("string", "What `print` makes of them"),
        },
        {
            "since_boot": _a("integer", "The time in nanoseconds, as the kernel's log has it, where that is known"),
            "lost_before": _a("integer", "Of `-overwrite`: records that came before this one and were overwritten"),
            "lost_after": _a("integer", "Records that came after this one, before the next, and found no room"),
            "stack": _list(
                _object(
                    "A frame",
                    _FRAME,
                    {"sure": _a("boolean", "False: the frame may be left from an earlier call")},
                ),
                "Of `stack`: the frames, the innermost first",
            ),
            "cut": _a("boolean", "Whether there are callers beyond the last frame"),
        },
    ),
    "report_cost": _line(
        "cost",
        "Of `report`, the last line of a probe: what a hit costs",
        {
            **_OWNER,
            "instructions": _a("integer|null", "Instructions beyond the original code; null where hits stop the guest"),
            "traps": _a("integer", "Traps in the guest"),
            "stops": _a("integer", "Stops of the guest"),
        },
        {
            "least": _a("integer", "Instructions where every condition is false"),
            "own": _a("integer", "The same as instructions, without programs of other probes at the address"),
            "own_least": _a("integer", "The same as least, without programs of other probes at the address"),
        },
    ),
    "report_guest_trace": _line(
        "guest_trace",
        "Of `report` without numbers: a trace that the guest printed up to a probed return, and the callers beyond",
        {
            "number": _a("null", "It belongs to no probe"),
            "pid": _a("integer|null", "The thread's id; null where it is not known"),
            "comm": _a("string", "The thread's name"),
            "cpu": _a("integer|null", "The CPU; null where it is not known"),
            "frames": _list(
                _object(
                    "A frame",
                    _FRAME,
                    {"interrupted": _a("boolean", "True: a trap or an interrupt came there")},
                ),
                "The frames, the innermost first",
            ),
            "cut": _a("boolean", "Whether there are callers beyond the last frame"),
        },
        {"left_out": _a("integer", "Of the last one: traces behind it that were not unwound")},
    ),
    "report_collector": _line(
        "collector",
        "Of `report` without numbers, the last line: what the slot collector has done",
        {
            "number": _a("null", "It belongs to no probe"),
            "runs": _object("How often it ran, by why", {}, {why.value: _a("integer", "Runs") for why in Trigger}),
            "failed": _a("integer", "Runs in which not all stacks could be enumerated"),
            "slots": _a("integer", "Slots that were freed"),
            "bytes": _a("integer", "Bytes that were freed"),
            "stacks": _a("integer", "Stacks that the last run looked through"),
            "garbage_slots": _a("integer", "Slots that are released and not yet free"),
            "garbage_bytes": _a("integer", "Bytes that are released and not yet free"),
            "quarantined": _a("string", "Why released slots are never free; empty where they may be"),
            "held_seconds": _object(
                "For how long it held the guest, in seconds",
                {"longest": _a("number", "The longest run"), "total": _a("number", "All runs")},
            ),
        },
        {},
    ),
    "run": _line(
        "run",
        "Of `run`, the last line",
        {
            "number": _a("null", "It belongs to no probe"),
            "text": _a("string", "Why the guest stopped, how long it ran, and the hits"),
        },
        {
            "records": _a("integer", "Of `-follow`: the records that were printed"),
            "lost": _a("integer", "Of `-follow`: the records that found their ring full"),
        },
    ),
    "offcpu": _line(
        "offcpu",
        "Of `offcpu`: a thread, or with `-by stack` a thread and a stack; the most time first",
        {
            "comm": _a("string", "The thread's name"),
            "count": _a("integer", "How often it was off a CPU and came back"),
            "nanoseconds": _a("integer", "For how long altogether"),
        },
        {"frames": _list(_a("string", _FRAME_NAME), "The stack where it waited, the innermost first")},
    ),
    "profile": _line(
        "profile",
        "Of `profile`: a thread and its stacks; the most samples first",
        {
            "comm": _a("string", "The thread's name"),
            "samples": _a("integer", "How often it ran there"),
            "user_frames": _list(_a("string", _FRAME_NAME), "The program's stack, the innermost first"),
            "kernel_frames": _list(_a("string", _FRAME_NAME), "The kernel's stack; empty where the program ran"),
        },
        {},
    ),
    "latency": _line(
        "latency",
        "Of `latency`: an interval",
        {
            "function": _a("string", "The function, as it was typed"),
            "seconds": _a("number|null", "The end of the interval, from the beginning; null of the last, shorter one"),
            **_TIMES,
        },
        {},
    ),
    "latency_total": _line(
        "latency_total",
        "Of `latency`, the last line: all calls",
        {
            "function": _a("string", "The function, as it was typed"),
            "untimed": _a("integer", "Calls that had begun before, or had another call of the thread within"),
            **_TIMES,
        },
        {},
    ),
    "calls_of": _line(
        "calls",
        "Of `calls`: a thread and a stack; the most calls first",
        {
            "function": _a("string", "The function, as it was typed"),
            "comm": _a("string", "The thread's name"),
            "count": _a("integer", "Calls"),
            "frames": _list(_a("string", _FRAME_NAME), "The callers, the innermost first"),
        },
        {},
    ),
    "graph_call": _object("A call within another one", _IN_GRAPH, _IN_GRAPH_MORE),
    "graph": _line(
        "graph",
        "Of `graph`: a call of the root",
        {
            "pid": _a("integer", "The thread's id"),
            "comm": _a("string", "The thread's name, or the first eight characters of it"),
            "ending": _a(
                "string",
                "How the tree ends: the root has returned, its thread has died, it is open, what came next is lost",
                enum=["returned", "died", "open", "lost"],
            ),
            "early": _a("boolean", "True: calls through pointers may lack, as where they lead was not known yet"),
            **_IN_GRAPH,
        },
        _IN_GRAPH_MORE,
    ),
    "graph_total": _line(
        "graph_total",
        "Of `graph`, the last line: what was shown, and what was not",
        {
            "function": _a("string", "The root, as it was typed"),
            "shown": _a("integer", "Calls of the root that were printed"),
            "early": _a("integer", "Of these, calls that may lack calls through pointers"),
            "withheld": _a("integer", "Calls of the root that were not printed, from before all pointers were known"),
            "not_followed": _a("integer", "Calls of the root that were not recorded: another thread had their place"),
            "lost": _a("integer", "Records that found no room: trees end where they are lost"),
            "missed": _a("integer", "Calls that were not recorded: too many at once"),
            "senseless": _a("integer", "Records that no probe of the graph makes"),
            "learned": _a("integer", "Functions that were found behind pointers, and are known to the next graph"),
            "not_probed": _a("integer", "Calls through pointers without a probe: what they lead to may lack"),
            "whole": _a("boolean", "False: the root reaches more functions than were looked at"),
            "left_out": _list(
                _object(
                    "A function",
                    {"function": _a("string", "Its name"), "text": _a("string", "Why it cannot be probed")},
                ),
                "Functions that are called, but not in the graph",
            ),
        },
        {},
    ),
    "doctor": _object(
        "Of `doctor`: one object",
        {
            "version": _a("string", "The version of optprobe"),
            "gdb": _a("string", "The version of GDB"),
            "python": _a("string", "The version of GDB's Python"),
            "qemu": _a("string", "The version of QEMU; empty where it does not tell"),
            "guest": _object(
                "The guest",
                {
                    "architecture": _a("string", "As GDB names it"),
                    "vcpus": _a("integer|null", "How many vCPUs it has; null where that is not known"),
                    "banner": _a("string", "What the kernel calls itself"),
                },
            ),
            "facilities": _list(
                _object(
                    "A facility",
                    {
                        "name": _a("string", f"Its name; of a guest {', '.join(f'`{name}`' for name in NAMES)}"),
                        "state": _a("string", "Whether it works", enum=["works", "refused"]),
                        "detail": _a("string", "The fact worth knowing where it works"),
                        "code": _a("string", "Where it is refused, a code of the closed list, see refusals.md"),
                        "reason": _a("string", "The reason in words"),
                        "hint": _a("string", "The next step"),
                    },
                ),
                "What works, and why the rest does not",
            ),
        },
    ),
}

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "list": ("list",),
    "show": ("show",),
    "explain": ("explain",),
    "report": tuple(name for name in DEFINITIONS if name.startswith("report_")),
    "doctor": ("doctor",),
    "offcpu": ("offcpu",),
    "profile": ("profile",),
    "latency": ("latency", "latency_total"),
    "calls": ("calls_of",),
    "graph": ("graph", "graph_total"),
    "run": ("report_probe", "report_map", "report_session_map", "report_record", "report_cost", "run"),
}
"""By command, the definitions of which each line is one. `add`, `break` and `dprintf` write what `list` does."""


def schema() -> Schema:
    """Return the schema of any line that a command writes with `-json`."""
    several = _list(_ref("show"), "Of `show` with several probes")
    lines = [_ref(name) for name in dict.fromkeys(name for names in COMMANDS.values() for name in names)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:optprobe:json:{VERSION}",
        "title": f"What optprobe writes with -json, version {VERSION}",
        "$comment": "Made by scripts/docs of gdb_optprobe/commands/json_schema.py",
        "anyOf": [*lines, several],
        "$defs": DEFINITIONS,
    }
