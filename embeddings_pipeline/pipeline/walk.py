"""One walk over a delivery's source: each record becomes one text or one reject per strategy, in parts.

What belongs here: cutting parts, second keys, and taking over what an earlier walk made of a file. What does not:
which files there are and what is remembered (`extraction`), reading formats (`storage.sources`) and rendering
texts (`storage.strategies`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embeddings_pipeline.records import Reason, Record, Reject, Text
from embeddings_pipeline.settings import CorpusSpec, ExtractSettings
from embeddings_pipeline.storage.index import SeenKeys, key_hashes
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.manifests import RecordsPart, SourceSlice
from embeddings_pipeline.storage.parts import Output, RecordsPartWriter, write_rejects
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.slices import KeysWriter, Remembered, repeated_digest
from embeddings_pipeline.storage.sources import Chunk, Reader
from embeddings_pipeline.storage.strategies import Unusable, hash_text, renderer

STAGE = "extract"
"""Of the rejects that a walk gives."""


@dataclass(slots=True)
class WalkCounts:
    """Records, parts that were there already, and files that were not read again."""

    records: int = 0
    reused: int = 0
    files_reused: int = 0


class _Chunks:
    """The chunks of a file, cut where a part ends."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._rest: Chunk | None = None

    def take(self, count: int) -> Iterator[Chunk]:
        """Yield the next records, at most `count` of them."""
        while count:
            chunk = self._rest if self._rest is not None else next(self._chunks, None)
            if chunk is None:
                return
            self._rest = None
            if len(chunk) > count:
                chunk, self._rest = chunk.cut(count)
            count -= len(chunk)
            yield chunk

    def skip(self, count: int) -> int:
        """Pass over as many records; return how many there were."""
        return sum(len(chunk) for chunk in self.take(count))


class Walk:
    """One walk over a source: what has been seen, and the parts so far."""

    def __init__(
        self, spec: CorpusSpec, output: Output, scratch: Scratch, remembered: Remembered, keys: KeysWriter
    ) -> None:
        self._spec = spec
        self._output = output
        self._scratch = scratch
        self._remembered = remembered
        self._renderers = [renderer(strategy) for strategy in spec.rendered_strategies()]
        single = [strategy.fields[0] for strategy in spec.strategies if strategy.fields and len(strategy.fields) == 1]
        self._fields = single if len(single) == len(spec.strategies) else []
        self._seen = SeenKeys()
        self._keys = keys
        self.counts = WalkCounts()
        self.parts: list[RecordsPart] = []
        self.sources: list[SourceSlice] = []

    def over(self, source: Reader, files: Sequence[FileEntry], settings: ExtractSettings) -> None:
        """Cut every file into parts of at most `part_texts` records; a part never spans two files."""
        to_skip = settings.offset
        left = settings.limit or None
        for file in files:
            if left == 0:
                break
            if not settings.partial and self._reuse(file):
                continue
            first_part, first_record = len(self.parts), self.counts.records
            self._keys.start()
            chunks = _Chunks(source.chunks(file))
            start = chunks.skip(to_skip)
            to_skip -= start
            while left != 0:
                size = self._spec.part_texts if left is None else min(self._spec.part_texts, left)
                count = self._part(file, start, chunks.take(size))
                start += count
                left = None if left is None else left - count
                if count < size:
                    break
            self.sources.append(
                SourceSlice(
                    file.name,
                    file.version,
                    self.counts.records - first_record,
                    len(self.parts) - first_part,
                    self._keys.keyed,
                    self._keys.repeated(),
                )
            )

    def _reuse(self, file: FileEntry) -> bool:
        """Take over what was written for a file that is as it was, if the same of its keys come a second time."""
        found = self._remembered.find(file)
        if found is None:
            return False
        entry, parts = found
        hashes = self._remembered.hashes(entry, self._scratch.file("keys-before.bin"))
        if hashes is None or repeated_digest(self._seen.repeated(hashes)) != entry.repeated:
            return False
        self._keys.start()
        self._keys.add(hashes, self._seen.add_hashes(hashes))
        self.sources.append(entry)
        self.parts.extend(parts)
        self.counts.records += entry.records
        self.counts.reused += len(parts)
        self.counts.files_reused += 1
        return True

    def _part(self, file: FileEntry, start: int, chunks: Iterator[Chunk]) -> int:
        """Write one part per strategy from the next records of a file; return how many there were."""
        writers = [RecordsPartWriter(self._scratch, strategy.name) for strategy in self._spec.strategies]
        count = 0
        for chunk in chunks:
            count += len(chunk)
            if self._columns(chunk, writers):
                continue
            for record in self._without_second_keys(chunk.records()):
                for writer, render in zip(writers, self._renderers, strict=True):
                    if isinstance(made := _text(record, writer.strategy, render), Text):
                        writer.add(made)
                    else:
                        writer.reject(made)
        for writer in writers if count else ():
            self._finish(writer, file, start, start + count)
        self.counts.records += count
        return count

    def _columns(self, chunk: Chunk, writers: Sequence[RecordsPartWriter]) -> bool:
        """Take a chunk's columns as they are, where each text is one field and nothing is wrong with any.

        Three times as fast as record by record; the texts are the same.
        """
        plain = chunk.plain(self._fields) if self._fields else None
        if plain is None:
            return False
        hashes = key_hashes(plain.keys)
        if self._seen.repeated(hashes).any():
            return False
        self._keys.add(hashes, self._seen.add_hashes(hashes))
        for writer, name in zip(writers, self._fields, strict=True):
            texts = plain.texts[name]
            text_hashes = [hash_text(text.encode()) for text in texts]
            writer.add_all(plain.keys, 0, texts, text_hashes, plain.positions)
        return True

    def _without_second_keys(self, batch: Sequence[Record]) -> Iterator[Record]:
        """Give every record whose key was there before a problem."""
        hashes = key_hashes([record.key for record in batch if record.key is not None])
        repeated = self._seen.add_hashes(hashes)
        self._keys.add(hashes, repeated)
        if not repeated.any():
            yield from batch
            return
        answers = iter(repeated.tolist())
        for record in batch:
            if record.key is not None and next(answers):
                detail = "a record with this key comes earlier in the delivery and was taken"
                yield Record(record.key, {}, record.position, (Reason.DUPLICATE_KEY, detail))
            else:
                yield record

    def _finish(self, writer: RecordsPartWriter, file: FileEntry, start: int, stop: int) -> None:
        """Move a part's files to their names and add it to the walk."""
        part = writer.close()
        name = f"{writer.strategy}/part-{part}.parquet" if writer.texts else None
        if name is not None:
            target = self._output.records / name
            self.counts.reused += target.exists()
            target.put(writer.path)
        rejects = self._output.rejects / writer.strategy / f"{STAGE}-{part}.parquet"
        write_rejects(self._scratch, rejects, writer.rejects, self._output.delivery.name)
        self.parts.append(
            RecordsPart(
                id=part,
                strategy=writer.strategy,
                texts=writer.texts,
                rejected=len(writer.rejects),
                file=name,
                source=file.name,
                start=start,
                stop=stop,
                reasons=dict(Counter(str(reject.reason) for reject in writer.rejects)),
            )
        )


def _text(record: Record, strategy: str, render: Callable[[Mapping[str, Any]], str]) -> Text | Reject:
    """Render one record for one strategy, or say why there is no text."""
    reason_detail = record.problem
    if reason_detail is None:
        try:
            text = render(record.values)
            return Text(str(record.key), strategy, 0, text, hash_text(text.encode("utf-8")), record.position)
        except Unusable as problem:
            reason_detail = (problem.reason, problem.detail)
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            reason_detail = (
                Reason.LONE_SURROGATE,
                f"the text holds half of a surrogate pair, {half}, at {error.start}",
            )
    reason, detail = reason_detail
    return Reject(record.key, strategy, 0, STAGE, reason, detail, record.position)
