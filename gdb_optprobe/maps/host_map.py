"""A map of the session that is in this process and not in guest memory: of programs that only the host runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HostMap:
    """Implements interpreter.MapContents. most: keys that there is room for. dropped: insertions that found none."""

    most: int = 4096
    dropped: int = 0
    words: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def get(self, key: bytes) -> tuple[int, ...] | None:
        return self.words.get(key)

    def put(self, key: bytes, words: tuple[int, ...]) -> bool:
        if key not in self.words and len(self.words) >= self.most:
            self.dropped += 1
            return False
        self.words[key] = words
        return True

    def delete(self, key: bytes) -> bool:
        return self.words.pop(key, None) is not None

    def all_keys(self) -> list[bytes]:
        return [*self.words]
