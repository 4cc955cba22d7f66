"""Stories with one question each: narrativeqa in form.

A story is four hand-written paragraphs of plot with scenes of a journey between them. Scenes
name the hero as `{hero}` and use `{he}`, `{his}`, `{him}`.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Story:
    """One plot; `plot` holds opening, two turns and the end."""

    title: str
    hero: str
    he: tuple[str, str, str]
    plot: tuple[str, str, str, str]
    question: str
    answers: tuple[str, ...]


SHE = ("she", "her", "her")
HE = ("he", "his", "him")

STORIES = (
    Story(
        "The Bell of Saint Corvin",
        "Anders",
        HE,
        (
            "The village of Saint Corvin had no bell. The old one had cracked on the night the "
            "tax collector drowned, and since then a boy had run through the lanes on Sundays "
            "beating a copper pan. Anders, who was the boy, grew up and grew tired of it. On the "
            "morning of his twentieth birthday he announced that he would go to the foundry at "
            "Graum and bring back a bell.",
            "The master of the foundry would take no coins. As the price of the bell the bell "
            "founder demanded a jar of honey from the abbot's hives, which no one outside the "
            "abbey had ever tasted. Anders thought about this for a whole night, walking up and "
            "down between the furnaces.",
            "The abbot turned out to be a small man with a cold who was glad of a visitor. He "
            "asked about the village, the pan and the tax collector, and he fell asleep in the "
            "middle of the answer. Anders sat with him until it was light, and mended the fire "
            "twice.",
            "So it came about that a bell was hung at Saint Corvin in time for the harvest. It "
            "was a little flat. Nobody minded, least of all the boy who had been beating the pan "
            "while Anders was away, and who was allowed to ring it first.",
        ),
        "What did the bell founder demand as the price of the bell?",
        ("a jar of honey from the abbot's hives", "A jar of the abbot's honey"),
    ),
    Story(
        "Miss Quill and the Lodger",
        "Miss Quill",
        SHE,
        (
            "Miss Quill let the upper room of her house to single gentlemen with references. The "
            "last of them, a Mr Lavender, had paid for three months in advance and been seen "
            "only twice. When the third month was over and no one had come down for breakfast, "
            "Miss Quill took the spare key from the tea caddy and went up.",
            "The room was as clean as a plate. The gift that Mr Lavender had left for Miss Quill "
            "was a birdcage full of foreign postage stamps. It stood in the exact middle of the "
            "bed, with a note which said only: forward, please. There was no address. Miss Quill carried the cage down "
            "to the kitchen and looked at it for most of the afternoon.",
            "It was the postmaster who gave her the idea. He held one of the stamps against the "
            "window, whistled, and asked whether she had ever thought of seeing the island it "
            "came from. Miss Quill had not, but by the time she reached her own gate she had "
            "thought of nothing else.",
            "She found Mr Lavender in the end, behind the counter of a small shop with green "
            "shutters. He did not seem surprised. He told her that nobody ever forwards a thing "
            "unless they are made to go with it, and then he put the kettle on.",
        ),
        "What was the gift that Mr Lavender left for Miss Quill?",
        ("a birdcage full of foreign postage stamps", "A birdcage full of postage stamps"),
    ),
    Story(
        "The Weather Clerk",
        "Tobiah",
        HE,
        (
            "Tobiah wrote down the weather for the Ministry. Every morning at six he climbed to "
            "the roof with a notebook, and every evening he sent a sealed page to the capital, "
            "where, as far as he knew, nobody read it. One day a reply came. It said that his "
            "figures for the valley of Orm were impossible, and that he must go there himself.",
            "The valley of Orm lay under a sky the colour of tin. The miller explained to Tobiah "
            "that the villagers kept the rain away by hanging wet laundry on the church roof. It "
            "had worked for eleven years, he said, and the only trouble was that they had "
            "run short of sheets.",
            "Tobiah wrote this down, and then he crossed it out. He measured the wind, the "
            "pressure and the damp, and found nothing unusual in any of them. At night he lay "
            "awake and listened for drops on the shutters, and heard only the miller snoring in "
            "the next room.",
            "His report to the Ministry was very short. It asked for forty sheets, double width, "
            "and it was signed, for the first time, with his full name. The sheets arrived in "
            "the spring, together with an order to say nothing about it to anyone.",
        ),
        "How did the villagers keep the rain away?",
        (
            "by hanging wet laundry on the church roof",
            "They hung wet laundry on the roof of the church",
        ),
    ),
)

SCENES = (
    "The road followed the hedge for a mile and then gave it up. {hero} walked in the middle, "
    "where the ruts were hardest, and counted the gates. At the ninth gate a dog came out, "
    "looked {him} over without much interest, and went back to its barrel.",
    "At the inn they gave {him} the room over the kitchen, which was warm and smelled of onions. "
    "A commercial traveller on the other side of the wall sang the same hymn four times. {hero} "
    "slept badly and woke with the tune in {his} head.",
    "Towards noon a carrier stopped and moved a crate of hens to make room. He talked about his "
    "knees, the price of oats and a nephew who had gone to sea. {hero} was grateful for the ride "
    "and said yes in the right places.",
    "The bridge was being mended, so everyone had to wait for the raft. Two schoolgirls shared a "
    "pear. An old man in a good hat explained to nobody in particular that the river had been "
    "wider when he was young, and that most things had.",
    "It rained for two days. {hero} sat at the window of a bakery, turning a cup round and "
    "round, while the baker's wife told {him} which of the neighbours were not speaking to each "
    "other. By the second evening {he} could have drawn a plan of the quarrel.",
    "On the market square a man was selling spectacles from a tray. {hero} tried on a pair and "
    "the whole town jumped nearer, chimneys and all. It was rather more than {he} wanted to see, "
    "and {he} handed them back.",
    "The night coach was nearly empty. A soldier slept with his mouth open, and a woman knitted "
    "something very long in the dark without dropping a stitch. Whenever the lamps of a village "
    "passed over the glass, {hero} saw {his} own face and was surprised by it.",
    "Above the tree line the path was marked with heaps of stones. {hero} added one to each, as "
    "people do, and tried not to look at the drop on the left. A pair of ravens kept {him} "
    "company as far as the saddle and then slid away over the edge.",
    "There was a fair in the next town, and not a bed to be had. {hero} spent the night in the "
    "waiting room among brass bandsmen, who were polite about it and lent {him} a drum to rest "
    "{his} feet on.",
    "{hero} wrote a letter home, tore it up, and wrote a shorter one. It said that the weather "
    "was fair and the food was plain. Everything else, {he} felt, could wait until there was "
    "somebody across the table to tell it to.",
    "A customs officer emptied the bag onto a counter and put the things back in a better order. "
    "He held up the spare stockings, raised an eyebrow at the book, and wished {him} a pleasant "
    "stay. Nobody had done so for a week.",
    "By the canal the poplars stood in two straight lines, and a barge went between them so "
    "slowly that {hero} kept level with it on foot. The woman at the tiller offered {him} "
    "an apple on the end of a pole.",
    "The schoolmaster of the place insisted on showing {him} the Roman drain. They stood over it "
    "together in the dusk. It was a hole with some bricks in it, but he spoke of it so well that "
    "{hero} remembered it afterwards as something fine.",
    "In the dining room a clock struck thirteen, and nobody looked up. {hero} ate mutton, and "
    "then a pudding that had been described as famous. When {he} asked about the clock, the "
    "waiter said that it had been like that since the war.",
    "Fog came up from the marsh and took away the road, the hedge and at last {his} own boots. "
    "{hero} stood still, as {he} had been taught to do as a child, and after an hour or so a "
    "cow walked out of it and led the way down.",
    "The last part of the way was done in a hay cart, lying on {his} back. There were more stars "
    "than {hero} thought necessary. The farmer's boy knew the names of three of them and had "
    "made up the rest.",
    "A wedding was going by, with two fiddlers and a great many aunts. Somebody pushed a glass "
    "into {his} hand. For the length of a street {hero} belonged to the family, kissed the bride, "
    "and was asked what {he} thought of the groom.",
    "The landlady wanted to know everything, so {hero} told her nothing, very courteously, for "
    "the whole of supper. She took it well. In the morning she gave {him} a boiled egg for the "
    "road and said that a quiet guest was a rare thing.",
    "The train stopped in open country for no reason that anyone could find. People got down and "
    "picked cornflowers along the bank. {hero} helped a child look for a lost mitten, which "
    "turned out to have been in its pocket the whole time.",
    "Snow had blocked the pass, and the guide would not start before it had frozen hard. So they "
    "played cards for matches in the hut, and {hero}, who had never won anything, won a hundred "
    "and six matches and gave them all back.",
)


def context(picker: Picker, story: Story, scenes: int) -> str:
    """Return the story: plot paragraphs in order, the answer's about a third of the way in."""
    he, his, him = story.he
    told = [
        scene.format(hero=story.hero, he=he, his=his, him=him)
        for scene in picker.some(SCENES, scenes)
    ]
    told = [text[0].upper() + text[1:] for text in told]
    opening, turn, second, end = story.plot
    first = scenes // 3
    later = first + (scenes - first) // 2
    parts = [opening, *told[:first], turn, *told[first:later], second, *told[later:], end]
    return f"{story.title}\n\n" + "\n\n".join(parts)
