"""Files that say which images or classes of a folder are taken, a name on each line, or the
label of each image.
"""

from __future__ import annotations

import csv
from pathlib import Path

from regbench.datasets.published import SIMCLR_LISTS, Faults, refuse_if
from regbench.datasets.sources.base import named
from regbench.datasets.sources.layouts import PARTS, Files, Listing, composed, like_train
from regbench.errors import RegbenchError
from regbench.files import file_sha256
from regbench.text import few

_WHAT = {"train_list": "training images", "class_list": "classes", "labels": "labels"}


def find_list(name: str, folder: Path, setting: str) -> Path:
    """Find a list in the source's folder, in the working directory, or among those that come with
    regbench.

    The refusal names `setting`, which gives the list.
    """
    # The list beside the images takes precedence over ours.
    for path in (folder / name, Path(name), Path(__file__).parent / name):
        if path.is_file() or (setting == "labels" and path.is_dir()):
            return path
    missing = f"the list of {_WHAT[setting]} {name} is missing"
    if not Path(name).is_absolute():
        missing += f": it is neither in {folder} nor in {Path.cwd()}"
    remedy = f"put it there, or give its path: dataset.source.{setting}=PATH"
    if name in ("1percent.txt", "10percent.txt"):
        remedy += f" (it is to be had from {SIMCLR_LISTS}{name})"
    raise RegbenchError(f"{missing}; {remedy}")


def _read_lines(path: Path, what: str) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # see `of_labels`
        return [composed(line.strip()) for line in text.splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RegbenchError(
            f"cannot read the list of {what} {path} ({error}); get it again"
        ) from error


def of_listed_classes(path: Path, files: Files, folder: Path) -> Files:
    """Keep the classes that a list names, in the folder's order.

    A line that begins with # is a comment.
    """
    lines = _read_lines(path, _WHAT["class_list"])
    names = [line for line in lines if line and not line.startswith("#")]
    folders = set(map(composed, files))
    missing = [name for name in names if name not in folders]
    wrong = Faults()
    wrong.add(missing, f"of its {len(names):,} classes are not in {folder}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        wrong.append(f"it names {len(twice):,} classes twice: {few(twice)}")
    what = f"the list of classes {path} cannot be used"
    refuse_if(wrong, what, "mend it, or give another dataset.source.class_list")
    listed = set(names)
    return {name: paths for name, paths in files.items() if composed(name) in listed}


def of_listed_images(path: Path, files: Files, folder: Path) -> Files:
    """Keep the images that a list names, in the folder's order.

    A line is a file's name, or CLASS/NAME if several classes have a file of that name. Lines that
    do not fit are refused with their numbers.
    """
    # A name without a class can be in several; CLASS/NAME is in one.
    classes_of: dict[str, list[str]] = {}
    for label, paths in files.items():
        for file in paths:
            classes_of.setdefault(composed(file.name), []).append(label)
            classes_of[composed(f"{label}/{file.name}")] = [label]
    first_line: dict[tuple[str, str], int] = {}
    wrong = Faults()
    for number, name in enumerate(_read_lines(path, _WHAT["train_list"]), start=1):
        if not name:
            continue
        line = f"line {number}: {name}"
        label, _, file_name = name.rpartition("/")
        classes = classes_of.get(name, [])
        if len(classes) > 1:
            where = f"{len(classes)} classes ({few(classes)})"
            wrong.append(f"{line} is in {where}; write CLASS/NAME")
        elif classes:
            first = first_line.setdefault((classes[0], file_name), number)
            if first != number:
                wrong.append(f"{line} is already in line {first}")
        elif label and label not in map(composed, files):
            wrong.append(f"{line}: its class {label} is not in {folder.name}/")
        else:
            wrong.append(f"{line}: it is not in {folder.name}/")
    chosen: Files = {}
    for label, paths in files.items():
        chosen[label] = [file for file in paths if (label, composed(file.name)) in first_line]
    empty = [label for label, paths in chosen.items() if not paths]
    # A list that does not fit at all would leave classes empty, too. Then only its lines are
    # reported.
    if empty and not wrong:
        lacks = f"none of {len(empty)} of the {len(files)} classes ({few(empty)})"
        wrong.append(f"it names {len(first_line):,} images and {lacks}; is it cut short?")
    what = f"{path} does not fit {folder}"
    refuse_if(wrong, what, "get the list again, or mend it or the folder")
    return chosen


def of_labels(
    path: Path, folder: Path, seen: Listing, unlabelled: bool
) -> tuple[dict[str, Files], list[Path]]:
    """Find the images that a table names, by part and class, and the others if they are used, as
    `unlabelled` says; without a column "split" there is one part.
    """
    # Spreadsheets begin a file in UTF-8 with a byte order mark, which is not part of the first
    # column's name.
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        seen.append(f"the labels {path} cannot be read ({error})")
        return {}, []
    if not {"file", "label"} <= {*columns}:
        needed = "it needs file and label, and may have split"
        seen.append(f"{path.name} has the columns {few(columns)}; {needed}")
        return {}, []
    images = {composed(str(path)): path for path in seen.images_below(folder)}
    seen.left_out.pop(path, None)
    first = "train" if "split" in columns else ""
    lines: dict[Path, int] = {}
    parts: dict[str, Files] = {}
    for number, row in rows:
        name, label = (row["file"] or "").strip(), composed((row["label"] or "").strip())
        split = (row.get("split") or "").strip()
        image, part, fault = images.get(composed(str(folder / name))), first, ""
        if "split" in columns:
            part = PARTS.get(split.lower(), "no part")
        if image is None:
            fault = f"is no image in {folder}"
        elif image in lines:
            fault = f"is already in line {lines[image]}"
        elif not label:
            fault = "has no label"
        elif part == "no part":
            fault = f"has the split '{split}', which is none of train, val and test"
        else:
            lines[image] = number
            parts.setdefault(part, {}).setdefault(label, []).append(image)
        if fault:
            seen.append(f"line {number} of {path.name}: {name} {fault}")
    if not parts.get(first) and not seen:
        of_train = " of the split train" if first else ""
        seen.append(f"{path.name} names no images{of_train}")
    seen.notes.append(f"labels are those of {path.name} (SHA-256 {file_sha256(path)})")
    others = sorted({*images.values()} - lines.keys())
    if others and not unlabelled:
        what = f"{len(others):,} images without a label are not read"
        remedy = "dataset.source.unlabelled=true trains on them"
        seen.notes.append(f"{what}, such as {named(others[0], folder)}; {remedy}")
    found: dict[str, Files] = {}
    for part in (first, "val", "test"):
        if part in parts:
            files = {label: sorted(parts[part][label]) for label in sorted(parts[part])}
            where = f"{path.name}, split {part}" if part else path.name
            found[where] = like_train(next(iter(found.values()), {}), files, where, seen)
    return found, others if unlabelled else []
