"""Meeting transcripts with a query: qmsum in form."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Meeting:
    """One meeting: an opening, the exchange that answers the query, and the subject."""

    subject: str
    opening: tuple[str, ...]
    decisive: tuple[str, ...]
    query: str
    answers: tuple[str, ...]


MEETINGS = (
    Meeting(
        "the reading room",
        (
            "Chair: Good morning. Okay, so this is the second meeting about the reading room, and "
            "we have, um, about forty minutes.",
            "Librarian: I have brought the plan, if somebody could hold the other end.",
        ),
        (
            "Chair: So what do we do about the lamps in the reading room?",
            "Architect: The old ones hum. I would take them all out.",
            "Librarian: The readers complain that the light is too cold.",
            "Chair: Okay, then it is decided. The reading room will get amber lamps with cloth "
            "shades, and they will be paid for by the friends of the library.",
            "Librarian: I will write to the friends of the library today.",
        ),
        "What did the group decide about the lamps in the reading room?",
        (
            "The group decided that the reading room will get amber lamps with cloth shades, and "
            "that they will be paid for by the friends of the library.",
        ),
    ),
    Meeting(
        "the harvest fair",
        (
            "Chair: Right, is everybody here? Then let us start with the harvest fair.",
            "Secretary: The minutes of the last meeting were a bit short, I was ill. Sorry.",
        ),
        (
            "Chair: Next, the animals. What happened with the goats last year?",
            "Farmer: They ate the raffle tickets. All of them.",
            "Secretary: And a part of the tent.",
            "Chair: Then the goats will be kept in the old tennis court behind the school this "
            "year, and two pupils will guard the gate.",
            "Farmer: The tennis court has a good fence. That will do.",
        ),
        "Where will the goats be kept during the harvest fair?",
        (
            "The goats will be kept in the old tennis court behind the school, and two pupils will "
            "guard the gate.",
        ),
    ),
    Meeting(
        "the swimming pool",
        (
            "Mayor: Good evening. We have only one point today, the swimming pool, so perhaps we can "
            "all be home for supper.",
            "Treasurer: I have heard that before.",
        ),
        (
            "Mayor: Now, the money. How do we pay for the repair of the swimming pool?",
            "Treasurer: The reserve is empty, we should not touch it.",
            "Engineer: The pump alone costs more than the slide.",
            "Mayor: My proposal is this. We pay for the repair of the swimming pool by selling the "
            "old fire engine and the town's second piano.",
            "Treasurer: I support that. Nobody plays the second piano anyway.",
        ),
        "How did the Mayor propose to pay for the repair of the swimming pool?",
        (
            "The Mayor proposed to pay for the repair of the swimming pool by selling the old fire "
            "engine and the town's second piano.",
        ),
    ),
)

EXCHANGES = (
    (
        "{b}: Before we go on, can we open a window? It is, um, rather warm in here.",
        "{a}: Sure. The left one does not open, take the right one.",
        "{c}: It is stuck as well. No, wait, now it goes.",
    ),
    (
        "{c}: I have a question about the dates. Is it the first or the second week?",
        "{a}: The second. The first week was only a draft.",
        "{b}: Then I have it wrong in my calendar.",
        "{a}: Please change it, and tell the others.",
    ),
    (
        "{a}: Who is writing the letter to the insurance?",
        "{c}: I wrote one in spring, but they never answered.",
        "{b}: Maybe call them instead. I know someone there.",
        "{a}: Good, you call them, and we come back to it next time.",
    ),
    (
        "{b}: The printer has sent the bill. It is a bit more than he said.",
        "{a}: How much is a bit?",
        "{b}: About a tenth. He says that paper has gone up.",
        "{a}: Fine, pay it, but ask him to tell us earlier.",
    ),
    (
        "{c}: Somebody should thank the volunteers. Last time it was forgotten.",
        "{a}: You are right. Shall we send cards?",
        "{b}: Cards are nice. I still have a box of them.",
    ),
    (
        "{a}: Has anyone spoken with the neighbours?",
        "{b}: I did. They do not mind, as long as it is quiet after ten.",
        "{c}: After ten we will all be asleep.",
        "{a}: Speak for yourself.",
    ),
    (
        "{c}: I tried the new form on the website, and it lost my name twice.",
        "{b}: Mine too. It does not like hyphens.",
        "{a}: Could you report that, please? With a picture, if possible.",
    ),
    (
        "{b}: About the keys. We have five keys and seven people.",
        "{a}: Then two more have to be cut.",
        "{c}: The locksmith is closed until Monday.",
        "{a}: Until then we leave one under the flower pot, as always.",
    ),
    (
        "{a}: I would like to hear about the survey. How many answers did we get?",
        "{c}: Eighty-one, and one drawing of a horse.",
        "{b}: The drawing is quite good, actually.",
        "{c}: Most people are happy. Some want more benches.",
    ),
    (
        "{c}: May I say something about the coffee?",
        "{a}: If it is short.",
        "{c}: It is terrible, and it has been terrible for a year.",
        "{b}: I second that. I could bring my own machine.",
        "{a}: Please do, then that is settled as well.",
    ),
    (
        "{b}: I looked at the figures again, and the two columns do not add up.",
        "{a}: By how much?",
        "{b}: Eleven. It is always eleven, I do not know why.",
        "{a}: Take them home and look again with fresh eyes.",
    ),
    (
        "{a}: The next meeting is on the ninth. Can everyone come?",
        "{c}: I have the dentist in the morning, but the afternoon is fine.",
        "{b}: The afternoon is better for me too.",
        "{a}: Then we say three o'clock, in this room, if the heating works.",
    ),
    (
        "{c}: There was a reporter here yesterday. She wanted to know how it is going.",
        "{a}: What did you tell her?",
        "{c}: That it is going. She took a picture of the door.",
        "{b}: I hope it was not the door with the hole.",
    ),
    (
        "{b}: Sorry, I have to ask again, what does the abbreviation on page four mean?",
        "{a}: I think that is a mistake. It should say metres.",
        "{c}: Ah, metres. I was wondering about the millions.",
    ),
)


def context(picker: Picker, meeting: Meeting, exchanges: int) -> str:
    """Return the transcript; the decisive exchange stands a quarter of the way in."""
    roles: list[str] = []
    for line in (*meeting.opening, *meeting.decisive):
        role = line.split(":")[0]
        if role not in roles:
            roles.append(role)
    a, b, c = roles
    talk = [
        [line.format(a=a, b=b, c=c) for line in exchange]
        for exchange in picker.some(EXCHANGES, exchanges)
    ]
    lines = list(meeting.opening)
    for place, exchange in enumerate(talk):
        if place == exchanges // 4:
            lines += meeting.decisive
        lines += exchange
    lines += [f"{a}: Then that is all for today. Thank you, everybody.", f"{c}: Thanks. Bye."]
    return "\n".join(lines)
