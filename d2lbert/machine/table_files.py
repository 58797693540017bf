"""Files of rows with named columns, in the format that their name says."""
import csv
import json
from pathlib import Path

from d2lbert.machine.arguments import UsageError

#: Endings of names that are formats of rows.
ROW_FORMATS = ('.csv', '.jsonl')

#: Endings of names that are formats in which rows are not written.
_OTHERS = ('.npy', '.npz', '.parquet', '.json', '.xlsx', '.feather', '.gz',
           '.bz2', '.xz', '.zst', '.zip')


def check_rows_out(out):
    """Refuse an --out whose name says a format that is not written."""
    ending = Path(out).suffix.lower()
    if ending in _OTHERS:
        raise UsageError(f'--out {out}: predictions are not written as '
                         f'{ending}: let the name end in '
                         f'{", ".join(ROW_FORMATS)}, .tsv or .txt')


def write_rows(path, ending, rows):
    """Write dictionaries of the same keys as `ending` says, one a row."""
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
