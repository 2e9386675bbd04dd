"""What clients keep between rounds: a row of numbers for each client that has taken part, in a memory-mapped file."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednews.errors import FednewsError

Parameters = dict[str, Tensor]


class ClientStore:
    """Named tensors of any number of clients, float32.

    A client has no row, and costs nothing, until it is written for the first time. The file is as long as the rows
    in use; it has no name, so that it ends with the process however that ends.

    Args:
        default: what a client without a row reads, by name; gives names and shapes.
        folder: where the file lies; the system's folder for temporary files (``TMPDIR``) when not given.
    """

    def __init__(self, default: Parameters, folder: Path | None = None) -> None:
        self._default = {name: value.detach().clone() for name, value in default.items()}
        self._sizes = [value.numel() for value in default.values()]
        self._rows: dict[int, int] = {}
        # Written as a file and read through a map: writing to a map would end a full disk in a bus error.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (open as long as the store is)

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
        found = [(place, self._rows[c]) for place, c in enumerate(clients.tolist()) if c in self._rows]
        places, rows = torch.tensor(found, dtype=torch.int64).view(-1, 2).T
        values = torch.from_numpy(self._mapped()[rows.numpy()]).split(self._sizes, 1)
        default = self._default if default is None else default
        stacked = {}
        for name, own in zip(self._default, values, strict=True):
            value = default[name].detach().to(clients.device)
            stacked[name] = value.repeat(len(clients), *[1] * value.dim())
            stacked[name][places.to(clients.device)] = own.view(len(places), *value.shape).to(value)
        return stacked

    def read_one(self, client: int, device: torch.device) -> Parameters:
        """One client's own tensors; none for a client without a row."""
        if client not in self:
            return {}
        return {name: value[0] for name, value in self.read(torch.tensor([client], device=device)).items()}

    def write(self, clients: Tensor, values: Parameters) -> None:
        """Replace the tensors of ``clients`` (int64 ``[c]``, all different) by ``[c, *shape]`` by name.

        Raises:
            FednewsError: the file cannot grow.
        """
        none = torch.empty(len(clients), 0, device=clients.device)  # of torch's default type, which may be float64
        parts = [values[name].detach().float().reshape(len(clients), -1) for name in self._default]
        rows = torch.cat([none, *parts], 1).float().cpu().numpy()
        for client, row in zip(clients.tolist(), rows, strict=True):
            self._write(self._rows.setdefault(client, len(self._rows)) * row.nbytes, row)

    def state_dict(self) -> dict[str, Tensor]:
        """``clients`` int64 ``[rows]`` and ``values`` float32 ``[rows, numbers]`` of the rows in use, mapped."""
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
        self._rows = {client: row for row, client in enumerate(state["clients"].tolist())}
        self._file.truncate(0)
        self._write(0, state["values"].cpu().contiguous().numpy())

    def _mapped(self) -> np.ndarray:
        """The rows in use, float32 ``[rows, numbers]``; what is written to them does not reach the file."""
        shape = (len(self._rows), sum(self._sizes))
        return np.memmap(self._file, np.float32, "c", shape=shape) if all(shape) else np.empty(shape, np.float32)

    def _write(self, place: int, values: np.ndarray) -> None:
        rest = memoryview(values).cast("B") if values.size else b""
        self._file.seek(place)
        try:
            while len(rest):
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise FednewsError(
                f"cannot keep {len(self)} clients' parameters ({len(self) * sum(self._sizes) * 4} bytes): "
                f"{error.strerror}; set TMPDIR to a folder with room"
            ) from error
