"""The data of a study: prepared once, in a folder named by everything that decides it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from client_app.contribution import Sample
from data_prep.prepare import prepare_files, prepare_synthetic
from data_prep.shards import open_shard
from data_prep.spec import FederationSpec, Progress
from data_prep.synthetic import GENERATOR_VERSION, MarketSpec


@dataclass(frozen=True)
class Market:
    """One federation: whose prices, and how they are dealt out.

    Attributes
    ----------
    federation : FederationSpec
        Silos, Dirichlet concentration, seed of the partition.
    synthetic : MarketSpec or None
        The market to simulate; None with folders.
    folders : tuple of str
        Folders of real price, macro and factor files.
    """

    federation: FederationSpec
    synthetic: MarketSpec | None
    folders: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Short hash of the whole specification."""
        content = {**asdict(self), "generator": GENERATOR_VERSION}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def prepare(self, cache: Path, progress: Progress | None = None) -> "Data":
        """Prepare the samples below ``cache``, or find them there.

        Raises
        ------
        data_prep.errors.DataError
            If the folders cannot be used or the partition is impossible.
        """
        out = cache / "data" / self.key
        if self.synthetic is not None:
            paths = prepare_synthetic(out, self.federation, market=self.synthetic, progress=progress)
        else:
            folders = [Path(folder) for folder in self.folders]
            paths = prepare_files(folders, out, self.federation, progress=progress)
        return Data.open(out, len(paths))


@dataclass(frozen=True)
class Data:
    """Prepared samples.

    Attributes
    ----------
    folder : Path
        Holds ``silo-00`` and so on.
    fingerprint : str
        SHA-256 over the hashes of all arrays of all silos.
    """

    folder: Path
    fingerprint: str

    @classmethod
    def open(cls, folder: Path, silos: int) -> "Data":
        """Take up prepared samples; arrays are not read, their hashes are in the manifests."""
        found = cls(folder, "")
        samples = found.samples()
        if len(samples) != silos:
            raise ValueError(f"{folder}: {len(samples)} silos, expected {silos}")
        content = {
            name: [sample.shard.manifest["arrays"], sample.shard.target_scale] for name, sample in samples.items()
        }
        return cls(folder, hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())

    def samples(self) -> Mapping[str, Sample]:
        """Return the silos' samples by name, memory-mapped: processes share them."""
        return {path.name: Sample(open_shard(path)) for path in sorted(self.folder.glob("silo-*"))}
