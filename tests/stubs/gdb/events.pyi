from collections.abc import Callable
from typing import Generic, TypeVar

import gdb

_Event = TypeVar("_Event", contravariant=True)

class EventRegistry(Generic[_Event]):
    def connect(self, callback: Callable[[_Event], object]) -> None: ...
    def disconnect(self, callback: Callable[[_Event], object]) -> None: ...

cont: EventRegistry[gdb.ContinueEvent]
stop: EventRegistry[gdb.StopEvent]
exited: EventRegistry[gdb.ExitedEvent]
new_objfile: EventRegistry[gdb.NewObjFileEvent]
free_objfile: EventRegistry[gdb.FreeObjFileEvent]
clear_objfiles: EventRegistry[gdb.ClearObjFilesEvent]
inferior_call: EventRegistry[gdb.InferiorCallPreEvent | gdb.InferiorCallPostEvent]
memory_changed: EventRegistry[gdb.MemoryChangedEvent]
register_changed: EventRegistry[gdb.RegisterChangedEvent]
breakpoint_created: EventRegistry[gdb.Breakpoint]
breakpoint_modified: EventRegistry[gdb.Breakpoint]
breakpoint_deleted: EventRegistry[gdb.Breakpoint]
before_prompt: EventRegistry[None]
new_inferior: EventRegistry[gdb.NewInferiorEvent]
inferior_deleted: EventRegistry[gdb.InferiorDeletedEvent]
new_thread: EventRegistry[gdb.NewThreadEvent]
gdb_exiting: EventRegistry[gdb.GdbExitingEvent]
connection_removed: EventRegistry[gdb.ConnectionEvent]
