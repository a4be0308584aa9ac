"""What dlt does in a benchmark: one pipeline, in the environment of the peers, told by JSON what to copy.

    .bench/peers/bin/python bench/dump/dlt_peer.py '{"source": …, "target": …}'

It prints JSON: the seconds of `pipeline.run` alone. The backend `default` is dlt as it comes: nothing is set but what
to copy. It knows nothing of Headgate.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Files are loaded side by side. They end at a hundred thousand rows, here with seven of those: dlt 1.31 fails on a last
# file without rows, so a table must not have a multiple of that.
FILE_ROWS = 600_001


def source_of(job: dict[str, Any]) -> Any:
    """The resource that is read."""
    if job["source"] == "files":
        from dlt.sources.filesystem import filesystem, read_parquet

        files = filesystem(bucket_url=job["from"], file_glob="**/*.parquet")
        read = read_parquet() if job["backend"] == "default" else read_parquet(chunksize=100_000, use_pyarrow=True)
        return (files | read).with_name(job["table"])
    from dlt.sources.sql_database import sql_table

    if job["backend"] == "default":
        return sql_table(job["from"], table=job["table"], schema=job.get("schema"))
    more = {}
    if job["backend"] == "connectorx":
        more["backend_kwargs"] = {"conn": job["conn"], "return_type": "arrow_stream"}
    return sql_table(
        job["from"],
        table=job["table"],
        schema=job.get("schema"),
        backend=job["backend"],
        chunk_size=100_000,
        reflection_level="full_with_precision",
        **more,
    )


def destination_of(job: dict[str, Any]) -> Any:
    """Where it is written."""
    import dlt

    if job["target"] == "postgres":
        return dlt.destinations.postgres(job["to"])
    if job["target"] == "files":
        return dlt.destinations.filesystem(job["to"])
    return dlt.destinations.sqlalchemy(job["to"])


def main(job: dict[str, Any]) -> None:
    """Run one pipeline."""
    with tempfile.TemporaryDirectory(prefix="hgdlt") as folder:
        os.environ["DLT_DATA_DIR"] = folder
        os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
        os.environ["RUNTIME__LOG_LEVEL"] = "CRITICAL"
        if job["backend"] != "default":
            os.environ["DATA_WRITER__FILE_MAX_ITEMS"] = str(FILE_ROWS)
        import dlt

        pipeline = dlt.pipeline(
            "bench",
            destination=destination_of(job),
            dataset_name=job["dataset"],
            pipelines_dir=str(Path(folder) / "pipelines"),
        )
        source = source_of(job)
        began = time.perf_counter()
        pipeline.run(source, write_disposition="append", loader_file_format=job["format"])
        steps = {step.step: (step.finished_at - step.started_at).total_seconds() for step in pipeline.last_trace.steps}
        print(json.dumps({"copy_s": time.perf_counter() - began, "steps": steps}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
