"""What clients keep between rounds: a row of numbers for each client that has taken part, in a file."""

import os
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednews.errors import FednewsError, StorageError

Parameters = dict[str, Tensor]
_WRITES_AT_ONCE = 2


class ClientStore:
    """Named tensors of any number of clients, float32.

    A client has no row, and costs nothing, until it is written for the first time. The file is as long as the rows
    in use; it has no name, so that it ends with the process however that ends. A thread writes it while rounds compute:
    a disk that has gigabytes to write makes whoever writes more wait.

    Args:
        default: what a client without a row reads, by name; gives names and shapes.
        folder: where the file lies; the system's folder for temporary files (``TMPDIR``) when not given.
    """

    def __init__(self, default: Parameters, folder: Path | None = None) -> None:
        self._default = {name: value.detach().clone() for name, value in default.items()}
        self._sizes = [value.numel() for value in default.values()]
        self._row_bytes = 4 * sum(self._sizes)
        self._rows: dict[int, int] = {}
        # Written as a file and read through a map: writing to a map would end a full disk in a bus error.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (open as long as the store is)
        self._writer = ThreadPoolExecutor(1, "fednews-clients")
        self._writes: deque[tuple[list[int], Future[None]]] = deque()

    def __len__(self) -> int:
        """Clients with a row."""
        return len(self._rows)

    def __contains__(self, client: int) -> bool:
        return client in self._rows

    def read(self, clients: Tensor, default: Parameters | None = None) -> Parameters:
        """Tensors of ``clients`` (int64 ``[c]``), stacked: ``[c, *shape]`` by name, on the device of ``clients``.

        Args:
            clients: any numbers that name clients.
            default: what clients without a row read, instead of the store's own default.
        """
        default = self._default if default is None else default
        stacked = {
            name: default[name].new_empty((len(clients), *default[name].shape), device=clients.device)
            for name in self._default
        }
        rows = {self._rows.get(client) for client in clients.tolist()}
        written = [place for place, (begun, _) in enumerate(self._writes, 1) if rows.intersection(begun)]
        self._finish_writes(len(self._writes) - max(written, default=0))
        for place, client in enumerate(clients.tolist()):
            own = {name: values[place] for name, values in stacked.items()}
            if client in self._rows:
                self._read(self._rows[client] * self._row_bytes, own)
            else:
                for name, value in own.items():
                    value.copy_(default[name].detach())
        return stacked

    def read_one(self, client: int, device: torch.device) -> Parameters:
        """One client's own tensors; none for a client without a row."""
        if client not in self:
            return {}
        return {name: value[0] for name, value in self.read(torch.tensor([client], device=device)).items()}

    def write(self, clients: Tensor, values: Parameters) -> None:
        """Replace the tensors of ``clients`` (int64 ``[c]``, all different) by ``[c, *shape]`` by name.

        The values must not be changed afterwards. A failure is raised by this call or one of the next.

        Raises:
            FednewsError: the file cannot grow.
        """
        parts = [values[name].detach().to("cpu", torch.float32).contiguous().numpy() for name in self._default]
        rows = [self._rows.setdefault(client, len(self._rows)) for client in clients.tolist()]
        self._finish_writes(_WRITES_AT_ONCE - 1)
        self._writes.append((rows, self._writer.submit(self._write, rows, parts)))

    def state_dict(self) -> dict[str, Tensor]:
        """``clients`` int64 ``[rows]`` and ``values`` float32 ``[rows, numbers]`` of the rows in use, mapped."""
        self._finish_writes()
        return {
            "clients": torch.tensor(list(self._rows), dtype=torch.int64),
            "values": torch.from_numpy(self._mapped()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace everything by what :meth:`state_dict` gave.

        Raises:
            FednewsError: the state is one of other tensors, or the file cannot grow.
        """
        numbers = state["values"].shape[1]
        if numbers != sum(self._sizes):
            raise FednewsError(f"the checkpoint keeps {numbers} numbers for each client, not {sum(self._sizes)}")
        self._finish_writes()
        self._rows = {client: row for row, client in enumerate(state["clients"].tolist())}
        self._file.truncate(0)
        self._write([0], [state["values"].cpu().contiguous().numpy()[None]])

    def _mapped(self) -> np.ndarray:
        """The rows in use, float32 ``[rows, numbers]``; what is written to them does not reach the file."""
        shape = (len(self._rows), sum(self._sizes))
        return np.memmap(self._file, np.float32, "c", shape=shape) if all(shape) else np.empty(shape, np.float32)

    def _read(self, place: int, own: Parameters) -> None:
        """Read tensors that lie one after the other from byte ``place`` on, into them where their type allows it."""
        for to in own.values():
            direct = to.dtype == torch.float32 and to.device.type == "cpu"
            numbers = to if direct else torch.empty(to.shape, dtype=torch.float32)
            rest = _bytes(numbers.numpy())
            while len(rest):
                read = os.preadv(self._file.fileno(), [rest], place)
                rest, place = rest[read:], place + read
            if not direct:
                to.copy_(numbers)

    def _write(self, rows: list[int], parts: list[np.ndarray]) -> None:
        """Write to each of ``rows`` what is its own in each of ``parts``, one after the other."""
        try:
            for index, row in enumerate(rows):
                place = row * self._row_bytes
                for part in parts:
                    rest = _bytes(part[index])
                    while len(rest):
                        written = os.pwrite(self._file.fileno(), rest, place)
                        rest, place = rest[written:], place + written
        except OSError as error:
            raise StorageError(
                f"cannot keep {len(self)} clients' parameters ({len(self) * self._row_bytes} bytes): "
                f"{error.strerror}; set TMPDIR to a folder with room"
            ) from error

    def _finish_writes(self, but: int = 0) -> None:
        """Wait until all writes but the last few are done."""
        while len(self._writes) > but:
            self._writes.popleft()[1].result()


def _bytes(values: np.ndarray) -> memoryview:
    return memoryview(values.reshape(-1)).cast("B") if values.size else memoryview(b"")
