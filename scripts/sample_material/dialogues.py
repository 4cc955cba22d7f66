"""Messenger dialogues with a summary as few-shot examples: samsum in form.

Lines end with CRLF inside a dialogue, as in the original format.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Dialogue:
    """One dialogue; `people` fill `{a}` and `{b}` of the small talk that follows `lines`."""

    lines: tuple[str, ...]
    summaries: tuple[str, ...]
    people: tuple[str, str] = ("", "")


SHOTS = (
    Dialogue(
        (
            "Priya: did you find my umbrella?",
            "Owen: yes, it was under the seat in the tram",
            "Priya: you are a hero!! when can I get it?",
            "Owen: I'll leave it with the porter tonight",
            "Priya: perfect, thanks <3",
        ),
        ("Owen found Priya's umbrella in the tram and will leave it with the porter tonight.",),
    ),
    Dialogue(
        (
            "Bruno: the oven is dead",
            "Celia: again? what about the cake?",
            "Bruno: I asked Mrs Ivers, we can use hers at four",
            "Celia: ok I'll bring the tins",
        ),
        ("Bruno's oven is broken, so Bruno and Celia will bake the cake at Mrs Ivers's at four.",),
    ),
    Dialogue(
        (
            "Leo: are you coming to the chess club?",
            "Nina: can't, I have a fever",
            "Leo: oh no. do you need anything?",
            "Nina: lemons maybe :)",
            "Leo: lemons it is, I'll be there after the club",
        ),
        ("Nina has a fever and can't come to the chess club. Leo will bring her lemons.",),
    ),
    Dialogue(
        (
            "Gus: I got the job at the aquarium!",
            "Faye: NO WAY. the one with the penguins?",
            "Gus: the one with the penguins. I start in March",
            "Faye: I'm so proud of you, we have to celebrate",
            "Gus: Friday at mine?",
            "Faye: I'm in",
        ),
        (
            "Gus got a job at the aquarium and starts in March. Gus and Faye will celebrate on Friday.",
        ),
    ),
    Dialogue(
        (
            "Hilde: who took the blue ladder?",
            "Marek: me, sorry, I'm painting the hall",
            "Hilde: no problem, but I need it back by Sunday",
            "Marek: you'll have it on Saturday",
        ),
        (
            "Marek borrowed the blue ladder to paint the hall and will return it to Hilde on Saturday.",
        ),
    ),
    Dialogue(
        (
            "Tara: my train is stuck in Whitlock",
            "Joel: how long?",
            "Tara: they say two hours. there is a cow on the line",
            "Joel: a cow?!",
            "Tara: a very calm one. start dinner without me",
        ),
        ("Tara's train is two hours late because of a cow. Joel should start dinner without her.",),
    ),
    Dialogue(
        (
            "Anja: the museum is closed on Mondays",
            "Felix: oh. and the boat trip?",
            "Anja: the boat trip is at eleven, two tickets left",
            "Felix: buy them, quick!",
        ),
        ("The museum is closed on Mondays, so Anja will buy two tickets for the boat trip.",),
    ),
    Dialogue(
        (
            "Rolf: grandma wants a telescope for her birthday",
            "Emmi: a telescope? she is ninety!",
            "Rolf: she wants to see the rings of Saturn",
            "Emmi: then I'll ask the shop in Harbour Street",
            "Rolf: I'll pay half",
        ),
        (
            "Rolf's grandmother wants a telescope for her birthday. Emmi will ask the shop in Harbour "
            "Street and Rolf will pay half.",
        ),
    ),
    Dialogue(
        (
            "Kaja: I can't find the cat",
            "Ben: did you look in the piano?",
            "Kaja: she is in the piano. with three kittens",
            "Ben: three?? I'll bring a basket",
        ),
        ("Kaja found the cat in the piano with three kittens. Ben will bring a basket.",),
    ),
    Dialogue(
        (
            "Milan: the exam was moved to Wednesday",
            "Sofie: thank goodness, I haven't even opened the book",
            "Milan: shall we study in the botanical garden?",
            "Sofie: yes, tomorrow at nine, next to the palm house",
        ),
        (
            "The exam was moved to Wednesday. Milan and Sofie will study in the botanical garden "
            "tomorrow at nine.",
        ),
    ),
    Dialogue(
        (
            "Dario: the heating in the choir room is broken",
            "Jule: we can sing in my garage",
            "Dario: thirty people in your garage?",
            "Jule: I'll move the car, and everybody brings a chair",
        ),
        (
            "The heating in the choir room is broken, so the choir will sing in Jule's garage. "
            "Everybody brings a chair.",
        ),
    ),
)

ASKED = (
    Dialogue(
        (
            "Hannah: Omar, your accordion is at the lost property office!",
            "Omar: what?? where did they find it?",
            "Hannah: in the night bus to Kettlesby, on the back seat",
            "Omar: I could cry. I have to work until late all week",
            "Hannah: I know, so I will fetch the accordion on Thursday",
            "Omar: you would do that?",
            "Hannah: and bring it to the rehearsal in the fire station. they only want 12 euros",
            "Omar: I'll pay you back, and I'll bake you a plum tart",
            "Hannah: deal. is there anything wrong with the accordion?",
            "Omar: only the strap. the strap was torn before I lost the accordion",
            "Hannah: I'll look at the strap when I fetch it on Thursday",
            "Omar: the lost property office closes at six, remember",
            "Hannah: then I'll be at the lost property office at five",
            "Omar: you are the best. see you at the rehearsal!",
        ),
        (
            "Omar's accordion was found in the night bus. Hannah will fetch it from the lost property "
            "office on Thursday and bring it to the rehearsal.",
            "Hannah will fetch Omar's accordion from the lost property office on Thursday and bring "
            "it to the rehearsal. Omar will bake her a plum tart.",
        ),
        ("Hannah", "Omar"),
    ),
    Dialogue(
        (
            "Ruth: Stefan, we have to move the wedding",
            "Stefan: what happened to the castle?",
            "Ruth: the roof of the castle has fallen in. nobody was hurt",
            "Stefan: oh dear. and now?",
            "Ruth: the wedding will be on my uncle's cargo boat",
            "Stefan: the one with the coal?",
            "Ruth: he promised to clean it. can you tell the band?",
            "Stefan: I'll call the band tonight",
            "Ruth: is there room for a band on a cargo boat?",
            "Stefan: they can play on the roof of the cabin",
            "Ruth: and the guests? my aunt can't swim",
            "Stefan: nobody has to swim at a wedding, Ruth",
            "Ruth: my uncle says the cargo boat carries forty people",
            "Stefan: then the wedding fits on the boat exactly",
        ),
        (
            "The roof of the castle has fallen in, so Ruth's wedding will be on her uncle's cargo "
            "boat. Stefan will call the band tonight.",
        ),
        ("Ruth", "Stefan"),
    ),
    Dialogue(
        (
            "Ines: Paul, the parrot has escaped again",
            "Paul: Admiral? how did he get out?",
            "Ines: I left the kitchen window open while I was frying fish",
            "Paul: where is he now?",
            "Ines: on the roof of the post office, singing",
            "Paul: I'll come with the long net and some walnuts",
            "Ines: please hurry, the postman wants to call the fire brigade",
            "Paul: ten minutes. don't let anyone climb up",
            "Ines: the parrot is singing the song of the ice cream van now",
            "Paul: then there will be a crowd at the post office soon",
            "Ines: there is a crowd already. with children",
            "Paul: did the parrot eat today?",
            "Ines: no, so the walnuts are a good idea",
            "Paul: I have the net and the walnuts, I'm leaving",
        ),
        (
            "Ines's parrot has escaped through the kitchen window and is on the roof of the post "
            "office. Paul will come with a long net and some walnuts.",
        ),
        ("Ines", "Paul"),
    ),
)

SMALL_TALK = (
    (
        "{a}: how is the new flat?",
        "{b}: small but sunny",
        "{a}: do you still have boxes everywhere?",
        "{b}: I sit on one right now",
    ),
    (
        "{b}: is it still raining at your place?",
        "{a}: since Tuesday",
        "{b}: same here, my shoes are made of water",
        "{a}: haha poor you",
    ),
    (
        "{a}: did you watch the match?",
        "{b}: I fell asleep at half time",
        "{a}: you missed nothing",
        "{b}: that's what I told myself",
    ),
    (
        "{b}: my mother says hello by the way",
        "{a}: hello back! how is her knee?",
        "{b}: better, she is dancing again",
        "{a}: good for her",
    ),
    (
        "{a}: I finally finished that book",
        "{b}: the one with the lighthouse?",
        "{a}: yes. the ending is awful",
        "{b}: I warned you",
    ),
    (
        "{b}: have you eaten?",
        "{a}: soup. you?",
        "{b}: half a pizza, the other half is for breakfast",
        "{a}: very healthy",
    ),
    (
        "{a}: the neighbours have a new dog",
        "{b}: big or small?",
        "{a}: like a small horse",
        "{b}: send me a picture please",
    ),
    (
        "{b}: I have to get up at five tomorrow",
        "{a}: why on earth?",
        "{b}: inventory. we count every single screw",
        "{a}: sounds thrilling :D",
    ),
    (
        "{a}: do you remember our maths teacher?",
        "{b}: Mr Pohl? of course",
        "{a}: he drives the 14 bus now",
        "{b}: he always liked numbers",
    ),
    (
        "{b}: my phone is almost dead",
        "{a}: then charge it",
        "{b}: the charger is in the office",
        "{a}: typical",
    ),
)


def _written(lines: tuple[str, ...] | list[str]) -> str:
    return "Dialogue: " + "\r\n".join(lines) + "\nSummary: "


def sample(picker: Picker, asked: Dialogue, shots: int, exchanges: int) -> tuple[str, str]:
    """Return context (`shots` examples) and input (the asked dialogue with small talk after it)."""
    context = "\n".join(
        _written(shot.lines) + shot.summaries[0] for shot in picker.some(SHOTS, shots)
    )
    a, b = asked.people
    talk = [
        line.format(a=a, b=b)
        for exchange in picker.some(SMALL_TALK, exchanges)
        for line in exchange
    ]
    return context, _written([*asked.lines, *talk])
