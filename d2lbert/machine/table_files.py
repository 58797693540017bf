"""Write rows with named columns as CSV or JSON lines."""
import csv
import json
from pathlib import Path

from d2lbert.machine.arguments import UsageError

#: File name extensions of the formats that are written here.
ROW_FORMATS = ('.csv', '.jsonl')

#: Extensions of other table and archive formats, which are rejected.
_OTHERS = ('.npy', '.npz', '.parquet', '.json', '.xlsx', '.feather', '.gz',
           '.bz2', '.xz', '.zst', '.zip')


def check_rows_out(out):
    """Raise if the extension of --out is a format that is not supported."""
    ending = Path(out).suffix.lower()
    if ending in _OTHERS:
        raise UsageError(f'--out {out}: predictions are not written as '
                         f'{ending}: let the name end in '
                         f'{", ".join(ROW_FORMATS)}, .tsv or .txt')


def write_rows(path, ending, rows):
    """Write dictionaries with equal keys, one per row, in format `ending`."""
    with open(path, 'w', encoding='utf-8', newline='') as file:
        writer = None
        for row in rows:
            if ending == '.jsonl':
                file.write(json.dumps(row, ensure_ascii=False) + '\n')
                continue
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator='\n')
                writer.writeheader()
            writer.writerow(row)
