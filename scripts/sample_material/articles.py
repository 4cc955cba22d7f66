"""Scientific articles with one question each: qasper in form.

Each study has hand-written paragraphs of its own; the paragraphs any article might have come
from a common stock. `{topic}`, `{system}` and `{group}` are the study's.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Study:
    """One invented study."""

    topic: str
    system: str
    group: str
    opening: str
    data: str
    method: str
    result: str
    question: str
    answers: tuple[str, ...]


STUDIES = (
    Study(
        "detecting polite refusals in service dialogues",
        "SoftNo",
        "annotators",
        "People who work at a counter rarely say no. They say that they will see what can be done, "
        "that it is a busy week, or that a colleague might know. Systems which take such answers "
        "literally make promises that nobody keeps. This paper studies the task of detecting "
        "polite refusals in service dialogues.",
        "The training data of SoftNo consists of recorded telephone calls to a municipal library "
        "service. The calls were transcribed by hand, and all names were removed before the "
        "annotation began. Every transcript was read by two annotators, who marked each turn that "
        "they understood as a refusal.",
        "SoftNo is a recurrent classifier over turns. Each turn is first encoded word by word, and "
        "a second network then reads the sequence of turns in both directions. The decision for a "
        "turn may therefore depend on what the caller answers to it.",
        "SoftNo finds most refusals that are softened by a delay, and it fails on those softened "
        "by a joke. Reading the turns in both directions helps more than a larger vocabulary.",
        "What does the training data of SoftNo consist of?",
        (
            "recorded telephone calls to a municipal library service",
            "telephone calls to a municipal library",
        ),
    ),
    Study(
        "reading handwritten dates in ship's logs",
        "LogEye",
        "transcribers",
        "Old ship's logs are among the best records of weather at sea, but an observation is of "
        "little use without its date. Dates in logs are abbreviated, corrected and often left out "
        "when nothing had changed. We present LogEye, a system for reading handwritten dates in "
        "ship's logs.",
        "The pages were photographed in two harbour archives with an ordinary camera. About a "
        "third of them are stained, and some were written in pencil. A group of transcribers typed "
        "every date twice, and disagreements were settled by a third reader.",
        "The main error source of LogEye was ink bleeding through from the reverse page. To read a "
        "date, LogEye first looks for the ruled margin, cuts out the line and passes it to a "
        "small convolutional network. A calendar model then removes readings that would put a "
        "voyage out of order.",
        "With the calendar model nine dates in ten are read correctly. Without it the share falls "
        "by a quarter, since a single misread month spoils the days that follow.",
        "What was the main error source of LogEye?",
        (
            "ink bleeding through from the reverse page",
            "ink bleeding through from the back of the page",
        ),
    ),
    Study(
        "translating recipes between regional kitchens",
        "PotLuck",
        "cooks",
        "A recipe that is translated word by word can still be impossible to cook, because the "
        "flour, the pot or the oven of one region does not exist in the other. This article is "
        "about translating recipes between regional kitchens, and about how such a translation "
        "should be judged.",
        "The collection has recipes from six regions, given to us by families on the condition "
        "that the quantities are not changed. Each recipe was paired with the nearest dish of "
        "another region by cooks who knew both kitchens.",
        "The judges of PotLuck were twelve retired ship's cooks from the southern fleet. "
        "The system itself works in two steps. It first replaces ingredients with the help of a "
        "table of substitutes, and then rewrites the instructions with an attention-based model "
        "so that times and vessels agree with the new ingredients.",
        "PotLuck's dishes were called edible in most cases and good in about half. Word by word "
        "translation did nearly as well for soups and much worse for everything baked.",
        "Who were the judges of PotLuck?",
        (
            "twelve retired ship's cooks from the southern fleet",
            "retired ship's cooks from the southern fleet",
        ),
    ),
)

RELATED = (
    "Early work relied on lists of rules written by experts. Such lists are easy to read but "
    "difficult to keep up to date, and they say nothing about cases that their authors had not "
    "met BIBREF0 , BIBREF1 .",
    "Statistical models replaced rules as soon as enough examples had been collected BIBREF2 . "
    "Their weak point is the tail: what is rare in the examples is usually ignored in the output.",
    "A different line of research treats the question as one of search, and ranks candidates "
    "instead of labelling them BIBREF3 . We do not follow it here, because a ranking always "
    "returns something, even when the right answer is nothing.",
    "Closest to our own work is a pilot study with forty volunteers BIBREF4 . It reports "
    "encouraging figures, but its material was chosen by the authors themselves and has never "
    "been released.",
    "Several shared tasks have been organised on neighbouring problems BIBREF5 , BIBREF6 . The "
    "best systems in them were seldom the most complicated ones.",
)
DETAILS = (
    "All parameters were set on a held-out part of the data and not changed afterwards. Training "
    "took one night on a single machine, and the results vary little between runs.",
    "We tried larger models as well. They learn the training part by heart within a few passes, "
    "and on new material they are no better than the one described here.",
    "Agreement between the {group} was substantial. Most of the remaining differences concern "
    "borderline cases, in which both readings can be defended.",
    "To make the comparison fair, the baselines received the same input and the same number of "
    "training steps. Their settings follow the descriptions in the original papers.",
    "An ablation shows that each part of {system} matters, although not equally. Removing the "
    "smallest part costs about one point, removing the largest about twelve.",
    "Significance was tested with a paired permutation test over documents. Differences of less "
    "than two points should not be taken seriously.",
    "Every tenth item was looked at by hand. The errors fall into three groups of similar size, "
    "none of which seems out of reach for a better model.",
)
CLOSING = (
    "We have presented a study of {topic}. The work is limited in several ways. The material "
    "comes from few sources, the {group} knew the purpose of the study, and no other group has "
    "repeated it yet.",
    "This article described {system} and the material it was built from. We do not claim that the "
    "problem of {topic} is solved, only that it can now be measured by anyone who cares to.",
)
FUTURE = (
    "In future work we would like to reduce the amount of labelled material that is needed, and "
    "to find out which of the errors matter to the people who would use such a system. A "
    "demonstration is planned for the coming year.",
    "An obvious next step is to repeat the work with material from another country. We also plan "
    "to ask the {group} to correct the output of the system, and to measure how much time this "
    "saves.",
)
THANKS = (
    "We thank the {group} for their patience, and three anonymous readers whose remarks improved "
    "the text. The research was paid for by a small grant from the second author's employer, who "
    "had no influence on the results.",
)


def context(picker: Picker, study: Study) -> str:
    """Return the article; the data and method sections stand before the middle."""
    sections = (
        ("Introduction", (study.opening,)),
        ("Data", (study.data,)),
        ("Method", (study.method,)),
        ("Related Work", tuple(picker.in_order(RELATED, 3))),
        ("Experiments", tuple(picker.some(DETAILS, 4))),
        ("Results", (study.result,)),
        ("Conclusion", (picker.one(CLOSING), picker.one(FUTURE))),
        ("Acknowledgments", THANKS),
    )
    text = "\n".join(f"{head}\n" + "\n".join(paragraphs) for head, paragraphs in sections)
    return text.format(topic=study.topic, system=study.system, group=study.group)
