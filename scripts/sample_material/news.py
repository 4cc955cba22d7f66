"""Several news passages on one event with a summary: multi_news in form."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Event:
    """One event as told by two papers; `place` and `paper` fill the stock passage."""

    place: str
    first: str
    second: str
    summary: str


EVENTS = (
    Event(
        "Port Ellery",
        "A whale that swam into the harbour of Port Ellery on Monday has been led back to the sea "
        "by a brass band. The animal, about twelve metres long, had been circling between the "
        "ferries for two days, and all traffic had been stopped. Attempts to drive it out with "
        "boats and hoses failed.\n\nOn Wednesday evening the harbour master, Edith Rowan, "
        "remembered that the whale had come closer whenever the church bells rang. She asked the "
        "band of the fire brigade to play on a tugboat. The whale followed the tugboat for three "
        "miles and dived behind the lighthouse at sunset.\n\n\"I have seen many things here, but "
        "never that,\" Rowan said.",
        "The ferries of Port Ellery are running again after a whale blocked the harbour for two "
        "days. About 4,000 passengers had to wait, and the ferry company puts its losses at 90,000 "
        "crowns. The whale left the harbour on Wednesday, following a tugboat with a brass "
        "band on board.\n\nBiologists from the coast institute say that the whale was young and "
        "healthy and had probably followed a shoal of herring. They doubt that it liked the music. "
        "\"It may simply have followed the sound of the engine,\" one of them said. The band has "
        "been invited to play at the institute all the same.",
        "A whale that swam into the harbour of Port Ellery has been led back to the sea by a brass "
        "band. The whale had blocked the harbour for two days, and about 4,000 ferry passengers had "
        "to wait. After attempts to drive it out with boats and hoses failed, the harbour master, "
        "Edith Rowan, asked the band of the fire brigade to play on a tugboat, and the whale "
        "followed the tugboat for three miles. Biologists say that the whale was young and healthy "
        "and doubt that it liked the music.",
    ),
    Event(
        "Whitlock",
        "The town of Whitlock has found its missing bridge. The iron footbridge over the Nidder, "
        "18 metres long, disappeared in the night of the second of May. Police at first suspected "
        "scrap dealers, and a reward of 5,000 crowns was offered.\n\nOn Friday a pilot saw the "
        "bridge from the air. It stood in the garden of a retired engineer, Hubert Lessing, across "
        "a pond with goldfish. Lessing admitted that he had taken the bridge apart with eleven "
        "friends and carried it away on a hay cart. He said that the town had let it rust for "
        "twenty years.",
        "A retired engineer who stole a bridge will not go to prison. A court in Whitlock on "
        "Tuesday ordered Hubert Lessing, 71, to put the footbridge back where it belongs and to "
        "paint it. The judge noted that Lessing had removed the rust and replaced forty bolts at "
        "his own cost.\n\nThe mayor of Whitlock told reporters that the bridge had never looked so "
        "good. The town will pay for the paint. Lessing's friends have promised to help with the "
        "return of the bridge, which is planned for the last weekend of June.",
        "The town of Whitlock has found its missing bridge. The iron footbridge over the Nidder "
        "disappeared in the night of the second of May and was seen by a pilot in the garden of a "
        "retired engineer, Hubert Lessing. Lessing admitted that he had taken the bridge apart with "
        "eleven friends and said that the town had let it rust for twenty years. A court ordered "
        "him to put the footbridge back and to paint it. The mayor said that the bridge had never "
        "looked so good.",
    ),
    Event(
        "Velmary",
        "Bakers in Velmary have gone on strike against a new rule that bread must be sold in the "
        "shape of a square. The rule was passed by the city council in March to save space on "
        "lorries. Since Sunday 140 of the city's 160 bakeries have been closed, and long queues "
        "have formed in front of the others.\n\nThe guild of bakers says that square loaves burn "
        "at the corners and stay raw in the middle. \"An oven is round, and so is hunger,\" said "
        "the head of the guild, Amalia Torres. Several schools have sent their pupils home at noon "
        "because there was no bread for lunch.",
        "The bread strike in Velmary is over. After nine hours of talks the city council on "
        "Thursday withdrew the rule that loaves must be square. Bakers went back to work in the "
        "same night, and by morning there was bread in every district.\n\nThe council had hoped to "
        "save a fifth of all lorry journeys. It will now rent smaller lorries instead. The head of "
        "the guild, Amalia Torres, gave the mayor a round loaf with the coat of arms of the city "
        "on it. The mayor said that he would eat it alone and think about his mistakes.",
        "Bakers in Velmary went on strike against a new rule that bread must be sold in the shape "
        "of a square. The rule was passed by the city council to save space on lorries. During the "
        "strike 140 of the city's 160 bakeries were closed. The guild of bakers, led by Amalia "
        "Torres, says that square loaves burn at the corners and stay raw in the middle. After nine "
        "hours of talks the city council withdrew the rule, and the bakers went back to work.",
    ),
    Event(
        "Hollin",
        "A nine-year-old girl has discovered a Roman mosaic under the playground of her school in "
        "Hollin. Freya Lund was digging a hole for a toy treasure when her spade hit a row of blue "
        "stones. Archaeologists have since uncovered a floor of thirty square metres, which shows "
        "a cat chasing fish.\n\nThe floor is said to be 1,700 years old and almost complete. "
        "\"We had planned to put a climbing frame there,\" said the headmaster. The playground "
        "will stay closed for the rest of the year, and lessons in digging have been added to the "
        "timetable.",
        "The Roman floor of Hollin will stay where it is. The culture ministry has decided to build "
        "a glass roof over the mosaic instead of moving it to the capital. The roof will cost "
        "600,000 crowns and allow pupils to play on top of it.\n\nMore than 8,000 people have come "
        "to see the mosaic since it was found by nine-year-old Freya Lund. She was given a silver "
        "trowel by the minister and asked what she wanted to be. She answered that she already "
        "was an archaeologist. Experts believe that the house belonged to a rich fish dealer.",
        "A nine-year-old girl, Freya Lund, has discovered a Roman mosaic under the playground of her "
        "school in Hollin. Archaeologists have uncovered a floor of thirty square metres, which "
        "shows a cat chasing fish and is said to be 1,700 years old. The culture ministry has "
        "decided to build a glass roof over the mosaic instead of moving it to the capital. More "
        "than 8,000 people have come to see it, and the girl was given a silver trowel by the "
        "minister.",
    ),
)

STOCK = (
    "Hotels in {place} report that they are fully booked. The tourist office has opened a second "
    "counter in the waiting room of the station and asks visitors to leave their cars outside the "
    "town.",
    "The local paper printed a special edition of eight pages, the first for eleven years. It was "
    "sold out before noon, and copies were being passed from hand to hand in the cafés around the "
    "square.",
    "Not everyone is pleased. A retired teacher wrote to this newspaper that {place} had other "
    "worries, such as the state of the pavements, and that nobody had come from the capital to "
    "look at those.",
    "The weather has been kind so far. Forecasters expect sunshine until the weekend and then a "
    "front from the west with heavy showers, which may reach {place} on Sunday evening.",
    "Souvenirs are already on sale. A stationer in the main street offers mugs and tea towels, "
    "and a confectioner has put a model made of sugar into his window, where children press their "
    "noses against the glass.",
    "{place} was last in the news six years ago, when the roof of the indoor market was blown "
    "off during a concert and landed, undamaged, on the football ground.",
    "Regional trains to {place} will be longer than usual for the next two weeks. Passengers are "
    "asked to buy their tickets before boarding, since the machines on the platform are out of "
    "order.",
    "At a meeting in the parish hall about two hundred residents talked until midnight. There was "
    "tea and a certain amount of shouting. In the end a committee of five was formed, which will "
    "meet again after the holidays.",
    "A television crew from abroad has rented the upper floor of the old post office. Its members "
    "have been seen buying rubber boots, and one of them asked the way to a bridge that was pulled "
    "down a generation ago.",
    "Schools in the district will discuss the events in their lessons. A spokeswoman for the school "
    "board said that pupils had been writing about nothing else, and that their spelling had "
    "improved.",
)


def context(picker: Picker, event: Event) -> str:
    """Return three numbered passages: two on the event, a last one of reports around it."""
    stock = [text.format(place=event.place) for text in picker.some(STOCK, 7)]
    passages = (
        event.first,
        f"{event.second}\n\n{stock[0]}",
        "\n\n".join(stock[1:]),
    )
    return "\n\n".join(f"Passage {number}:\n{text}" for number, text in enumerate(passages, 1))
