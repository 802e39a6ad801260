"""Runs the programs in turn and summarises the rounds."""
import json
import statistics
import subprocess
import sys

from _build import say


def last_json(command, **options):
    """Returns the last JSON object that a command prints. A failure of the command ends the
    measurement."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    return printed_json(command, done.returncode, done.stdout)


def printed_json(command, status, printed):
    """Returns the JSON object in the output of a command that has ended. A failure of the command
    ends the measurement."""
    if status != 0:
        sys.exit(f"bench: {' '.join(command)} failed with {status}:\n{printed}")
    return json.loads(printed[printed.index("{"):])


def rounds(contestants, number):
    """Runs every program (name -> function) once per round. The order rotates, so that no program
    always runs after the same other program."""
    names = list(contestants)
    results = {name: [] for name in names}
    for turn in range(number):
        order = names if turn % 2 == 0 else names[::-1]
        for name in order:
            result = contestants[name]()
            results[name].append(result)
            said = {key: value for key, value in result.items() if isinstance(value, (int, float, str))}
            say(f"round {turn + 1}, {name}: {said}")
    return results


def medians(results, figures):
    """Returns name -> figure -> median over the rounds."""
    return {
        name: {figure: round(statistics.median(one[figure] for one in samples), 3) for figure in figures if figure in samples[0]}
        for name, samples in results.items()
    }


def ratios(results, figure, ours, theirs):
    """Returns the median of the ratios within each round, and all of them. Other load on the
    machine affects both sides of a ratio."""
    each = [mine[figure] / other[figure] for mine, other in zip(results[ours], results[theirs])]
    return {"median": round(statistics.median(each), 2), "rounds": [round(one, 2) for one in each]}
