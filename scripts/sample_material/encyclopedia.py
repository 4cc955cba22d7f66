"""Short encyclopedia articles on invented places, people and things.

An article is a kind (`bridge`, `painter`, ...) whose sentences come from hand-written
alternatives; names, years and numbers are drawn from the lists below. `{x:a}` names the same
thing throughout one article.
"""

from __future__ import annotations

from scripts.sample_material.pick import Deck, Picker

GIVEN = (
    "Adela Albin Amrit Anselm Beatrix Bertil Carys Cosima Dagny Dorian Edda Emeric Esme Farida "
    "Fenno Gideon Greta Halvard Hester Idris Ilse Imogen Jarek Jorun Kasimir Leda Leopold Linnea "
    "Magda Marit Matthias Nadia Nestor Odile Oskar Petra Quentin Ragna Rufus Sabine Selwyn Sigrun "
    "Tamsin Theo Ursula Valentin Wanda Wilhelm Yara Zoltan"
).split()
FAMILY = (
    "Abernook Ashgrove Barrowin Bellmarsh Brackwell Calloway Coldstream Corvane Dunmoor Eastley "
    "Elderby Fairholt Fenwright Garrand Glaswick Hallorin Harkness Holloway Ivarsen Jessop Kestrel "
    "Kirkbride Lanyon Larkham Lindqvist Marchbank Merrow Nethercott Norrell Oakhurst Orwin Pellard "
    "Penhallow Quillan Ravensby Redfern Rosewarne Sandoval Selkirk Tarrant Thornbury Trevanion "
    "Underhay Vasterling Verrall Wainfleet Westerby Winslade Yarrow Zellner"
).split()
TOWNS = (
    "Aldermouth;Ambry Cross;Brannock;Castle Varne;Cold Harrow;Dunsterley;East Pellow;Fallowmere;"
    "Garth End;Hallowick;Ivelmouth;Kettlesby;Lower Strand;Marrow Bay;Nettlecombe;Old Tessaly;"
    "Port Ellery;Quarrendon;Ravelstone;Saint Orrin;Stonehallow;Tarn Abbey;Upper Wexcombe;Velmary;"
    "Whitlock;Wynford;Yewbarrow;Anchor Hythe;Birchover Green;Copperhill"
).split(";")
RIVERS = "Arrel Bourne Calder Dwyre Ebbling Farrow Gaunt Hethe Issel Lunn Marle Nidder Orne".split()
REGIONS = (
    "Ardenfell;the Broad Levels;Calderdown;the Eastern Reach;Harrowmark;the Lake Counties;"
    "Merrendale;Northmarch;the Osier Coast;the Salt Hundreds;Vandermark;the Western Isles"
).split(";")
LATER = [str(year) for year in range(1990, 2021)]
COUNTS = [str(count) for count in range(13, 98, 4)]
HUNDREDS = [str(count) for count in range(140, 980, 30)]

LISTS: dict[str, list[str]] = {
    "person": [f"{a} {b}" for a, b in zip(GIVEN, FAMILY, strict=True)],
    "family": FAMILY,
    "town": TOWNS,
    "river": RIVERS,
    "region": REGIONS,
    "later": LATER,
    "count": COUNTS,
    "hundred": HUNDREDS,
    "stone": "granite;yellow limestone;red sandstone;slate;flint;basalt;grey marble".split(";"),
    "goods": "wool;barley;cider;rope;paper;timber;salt fish;roof tiles;glass;candles".split(";"),
    "crop": "flax;hops;pears;rye;lavender;sugar beet;plums;mustard seed;apples".split(";"),
    "bird": "terns;curlews;barn owls;kingfishers;herons;swifts;oystercatchers".split(";"),
    "season": "spring;late summer;autumn;midwinter;early June;the first week of May".split(";"),
    "trade": "baker;cooper;saddler;schoolteacher;ferryman;clockmaker;printer;weaver".split(";"),
    "subject": "harbours;orchards;railway stations;market women;winter fields;fishing boats;"
    "empty kitchens;mountain roads".split(";"),
    "cause": "a fire in the boiler house;a winter flood;a long dispute over the rent;the loss of "
    "its main customer;a fall in the price of coal;an outbreak of fever".split(";"),
    "use": "a school;a hostel for walkers;flats;a library;a grain store;an art gallery;"
    "a cinema".split(";"),
    "shape": "octagonal;five-sided;nearly round;long and narrow;L-shaped".split(";"),
    "colour": "dark green;white;rust red;pale blue;black and yellow;cream".split(";"),
}

# kind -> (title, sentence alternatives in order); the first sentence is always used.
KINDS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "town": (
        "{town:t}",
        (
            (
                "{town:t} is a market town on the river {river:r} in {region}, with about "
                "{hundred} households.",
                "{town:t} is a small harbour town in {region}, where the river {river:r} meets "
                "the sea.",
                "{town:t} lies in a bend of the river {river:r}, at the southern edge of {region}.",
            ),
            (
                "Its charter was granted in {year}, and a weekly market for {goods} has been held "
                "in the square ever since.",
                "For most of its history the town lived from {goods} and from the tolls paid by "
                "barges.",
                "The oldest houses, built of {stone}, stand along a single street below the "
                "church.",
            ),
            (
                "The railway arrived in {year} and was closed again within two generations, "
                "after {cause}.",
                "A wall once surrounded the town, but only the north gate was left standing "
                "after {year}.",
                "In {year} half of the lower quarter was rebuilt after {cause}.",
            ),
            (
                "Visitors come in {season}, when {bird} gather on the mud below the quay.",
                "Fields of {crop} reach almost to the last gardens of the town.",
                "The former customs house has served as {use} since {later}.",
            ),
        ),
    ),
    "bridge": (
        "{family:f} Bridge",
        (
            (
                "{family:f} Bridge carries the old coast road over the river {river} near {town}.",
                "{family:f} Bridge is a footbridge of {stone} and iron that crosses the river "
                "{river} below {town}.",
                "{family:f} Bridge, completed in {year}, was the longest bridge in {region} for "
                "{count} years.",
            ),
            (
                "It has seven arches, of which the two nearest the bank were added after a flood.",
                "Its piers stand on oak piles that were driven into the river bed by hand.",
                "The deck is {count} metres long and just wide enough for two carts to pass.",
            ),
            (
                "Carters paid a toll of one penny until {year}, and the toll house is now {use}.",
                "The railings were painted {colour} in {later} after a vote among the residents.",
                "A {trade} from {town} kept the lamps on the bridge alight for {count} years "
                "without pay.",
            ),
            (
                "Since {later} heavy lorries have been sent round by the new road.",
                "In {season} the water sometimes rises to the foot of the parapet.",
                "A small chapel in the middle pier was used as a lock-up for smugglers.",
            ),
        ),
    ),
    "painter": (
        "{person:p}",
        (
            (
                "{person:p} was a painter from {town} who is remembered for quiet pictures of "
                "{subject}.",
                "{person:p} was a landscape painter who spent most of a long life in {region}.",
                "{person:p} was a painter and engraver, born in {town} in {year} as the child of "
                "a {trade}.",
            ),
            (
                "The early works are small and dark, and few of them were sold before {year}.",
                "After two years at the drawing school in {town} came a journey on foot through "
                "{region}.",
                "A first exhibition, held in a rented room above a {trade}'s shop, drew "
                "{hundred} visitors.",
            ),
            (
                "From then on the pictures were painted out of doors, often in {season}.",
                "Critics complained about the colours, above all about the {colour} skies.",
                "Letters to a sister describe how the paint froze on the brush in the mornings.",
            ),
            (
                "A large collection was given to the town of {town} in {later}.",
                "About {count} paintings survive, most of them in private houses.",
                "The last studio, a shed beside a field of {crop}, can be visited in {season}.",
            ),
        ),
    ),
    "engineer": (
        "{person:p}",
        (
            (
                "{person:p} was a civil engineer who built waterworks and harbour walls in "
                "{region}.",
                "{person:p} was an engineer and inventor who worked for the harbour office of "
                "{town}.",
                "{person:p} was a bridge engineer, trained as a {trade} before turning to iron.",
            ),
            (
                "A patent for a floating crane, filed in {year}, was ignored for a decade and "
                "then copied everywhere.",
                "The first large commission was a reservoir above {town}, finished in {year}.",
                "Colleagues admired the drawings, which were coloured by hand and never larger "
                "than a page.",
            ),
            (
                "A dispute with the town council over {stone} from the wrong quarry ended in "
                "court.",
                "In {year} a tunnel under the river {river} was given up after {cause}.",
                "The pumping station at {town} is still in use and can be seen in {season}.",
            ),
            (
                "A street in {town} was named after the engineer in {later}.",
                "The notebooks, {count} in all, are kept in the archive of {region}.",
                "Retirement was spent growing {crop} and repairing church clocks.",
            ),
        ),
    ),
    "ship": (
        "The {family:f}",
        (
            (
                "The {family:f} was a paddle steamer that carried passengers between {town} and "
                "{town} from {year} on.",
                "The {family:f} was a three-masted sailing ship built at {town} for the trade in "
                "{goods}.",
                "The {family:f} was a dredger that kept the harbour of {town} open for {count} "
                "years.",
            ),
            (
                "Her hull was {colour}, and sailors said that she could be recognised by the "
                "smell of {goods}.",
                "She was launched in {season} before a crowd of {hundred} people.",
                "Her first captain, {person}, had been a {trade} and could not swim.",
            ),
            (
                "In {year} she ran aground at the mouth of the {river} and lay there for "
                "{count} days.",
                "She was sold twice, and after {cause} she stayed in port for a whole winter.",
                "A storm in {year} carried away her funnel and most of the cargo.",
            ),
            (
                "Her bell hangs in the church of {town}.",
                "She was broken up in {year}, but her wheel is shown in the museum at {town}.",
                "Since {later} the wreck has been a resting place for {bird}.",
            ),
        ),
    ),
    "museum": (
        "{family:f} Museum",
        (
            (
                "The {family:f} Museum in {town} shows tools, toys and household goods from "
                "{region}.",
                "The {family:f} Museum is a small museum of clocks and instruments in the old "
                "grain hall of {town}.",
                "The {family:f} Museum, opened in {later}, tells the history of the trade in "
                "{goods}.",
            ),
            (
                "Its main hall is {shape} and lit from above through a roof of glass.",
                "The collection began with {count} boxes left to the town by a {trade}.",
                "Most of the rooms are on the ground floor of a former mill of {stone}.",
            ),
            (
                "The oldest object is a weather vane that was found in a field of {crop}.",
                "Children may wind the large clock on the stairs every day at noon.",
                "A model of the harbour as it looked in {year} fills a room of its own.",
            ),
            (
                "About {hundred} people visit the museum in an ordinary week in {season}.",
                "It was closed for three years after {cause}.",
                "Guided tours are given by volunteers, among them the former mayor {person}.",
            ),
        ),
    ),
    "festival": (
        "{town:t} {family:f} Festival",
        (
            (
                "The {family:f} Festival is held in {town:t} every year in {season}.",
                "The {family:f} Festival is a three-day celebration of {crop} and music in "
                "{town:t}.",
                "The {family:f} Festival of {town:t} began in {year} as a fair for {goods}.",
            ),
            (
                "It opens with a procession from the river {river} to the square, led by a "
                "{trade} on a grey horse.",
                "On the first evening lanterns in {colour} paper are floated down the {river}.",
                "A prize is given for the largest loaf, and the winner must share it at once.",
            ),
            (
                "Visitors sleep in barns and boats, since the inns have only {count} beds.",
                "In {year} the festival was moved to the meadow after {cause}.",
                "The choir of {town} has sung on the steps of the town hall since {year}.",
            ),
            (
                "The money raised is spent on the repair of the old wall of {stone}.",
                "A short film about the festival was made by {person} in {later}.",
                "It ends at midnight with the ringing of all {count} hand bells.",
            ),
        ),
    ),
    "lighthouse": (
        "{family:f} Point Lighthouse",
        (
            (
                "{family:f} Point Lighthouse stands on a rock of {stone} at the edge of {region}.",
                "{family:f} Point Lighthouse marks the northern entrance to the harbour of {town}.",
                "{family:f} Point Lighthouse was lit for the first time in {season} of {year}.",
            ),
            (
                "The tower is {count} metres high and painted {colour}.",
                "Stone for the tower was brought by barge from {town}, {count} loads in all.",
                "Its first keeper, a former {trade}, kept a diary of the weather and the {bird}.",
            ),
            (
                "During the great storm of {year} the keepers were cut off for {count} days.",
                "The lamp burned fish oil until {year}, when gas was laid on.",
                "A fog bell was added after the steamer {family} was lost on the reef.",
            ),
            (
                "The light has worked without a keeper since {later}.",
                "The keepers' cottages are let to visitors in {season}.",
                "Thousands of {bird} nest on the ledges below the gallery.",
            ),
        ),
    ),
    "school": (
        "{family:f} School",
        (
            (
                "{family:f} School in {town} was founded in {year} for the children of barge "
                "crews.",
                "{family:f} School is a boarding school in {region} that is known for its "
                "orchestra.",
                "{family:f} School began in {year} as an evening class for apprentices in {town}.",
            ),
            (
                "Lessons were first given in a disused store for {goods}.",
                "Its founder, {person}, taught there until the age of eighty-one.",
                "The main building is {shape}, with walls of {stone} and a bell tower.",
            ),
            (
                "Pupils work in the garden one afternoon a week and sell {crop} at the gate.",
                "In {year} the roof was lost in {season}, and classes met in the church.",
                "After {cause} the number of pupils fell to {count}.",
            ),
            (
                "A new science block was opened in {later}.",
                "The school's {colour} scarves are a common sight in the town.",
                "Its rowing club has won the race on the {river} {count} times.",
            ),
        ),
    ),
    "composer": (
        "{person:p}",
        (
            (
                "{person:p} was a composer and organist in {town}, known for songs for children's "
                "voices.",
                "{person:p} was a composer of dances and military marches from {region}.",
                "{person:p} was a composer, conductor and collector of folk tunes, born in {town} "
                "in {year}.",
            ),
            (
                "Lessons with a {trade} who played the fiddle came before any formal study.",
                "The first opera, given in {year}, ran for {count} nights and lost a great deal "
                "of money.",
                "A set of variations on a {trade}'s street cry made the name known abroad.",
            ),
            (
                "Work stopped for several years after {cause} ruined the family.",
                "Most of the music was written at night in a hut above the river {river}.",
                "The late pieces, written for {count} players, were thought impossible to perform.",
            ),
            (
                "A complete edition was begun in {later} and is still unfinished.",
                "A bust by {person} stands in the concert hall of {town}.",
                "The manuscripts were found in a chest of {goods} in {later}.",
            ),
        ),
    ),
    "lake": (
        "Lake {family:f}",
        (
            (
                "Lake {family:f} is the deepest lake in {region}, fed by the river {river}.",
                "Lake {family:f} is a reservoir above {town}, made when the valley was flooded in "
                "{year}.",
                "Lake {family:f} is a shallow lake between {town} and {town}, surrounded by reeds.",
            ),
            (
                "Its water is cold even in {season}, and few people swim in it.",
                "A road of {stone} runs along the eastern shore to a landing stage.",
                "It covers {hundred} hectares and freezes about one winter in four.",
            ),
            (
                "Fishing rights were disputed until {year}, when a court gave them to the "
                "{trade}s of {town}.",
                "In a dry year the chimneys of a drowned village rise above the surface.",
                "A ferry with a {colour} sail crossed the lake until {year}.",
            ),
            (
                "The shore has been a reserve for {bird} since {later}.",
                "The island in the middle belongs to the {family} family and is closed to "
                "visitors.",
                "Ice from the lake was once sold as far away as {town}.",
            ),
        ),
    ),
    "book": (
        "The {family:f} Papers",
        (
            (
                "The {family:f} Papers is a novel by {person}, published in {year}, about a "
                "{trade} who inherits a railway.",
                "The {family:f} Papers is a collection of letters written from {town} during the "
                "winter of {year}.",
                "The {family:f} Papers is a novel in three parts set among the {trade}s of {town}.",
            ),
            (
                "It was written in {count} days, partly on the backs of bills for {goods}.",
                "The first printing of {hundred} copies sold out in {season}.",
                "The story moves between a house of {stone} and a boat on the {river}.",
            ),
            (
                "Reviewers praised the dialogue and found the ending cruel.",
                "A chapter about {cause} was cut from the early editions.",
                "The heroine's {colour} coat became a fashion in the capital.",
            ),
            (
                "A play based on the book was staged in {town} in {later}.",
                "It has been translated into {count} languages.",
                "The house that served as a model for the story is now {use}.",
            ),
        ),
    ),
}


def article(picker: Picker, deck: Deck, kind: str, sentences: int = 4) -> tuple[str, str]:
    """Return title and text of one invented article of the given kind.

    Args:
        picker: chooses among alternatives.
        deck: names and numbers, shared by the articles of one record so that none recurs.
        kind: a key of `KINDS`.
        sentences: 1 to 4; the lead sentence is always among them.
    """
    title, slots = KINDS[kind]
    chosen = [slots[0], *picker.in_order(slots[1:], sentences - 1)]
    body = " ".join(picker.one(alternatives) for alternatives in chosen)
    filled = deck.fill(_with_years(picker, f"{title}\n{body}"))
    head, _, text = filled.partition("\n")
    return head, text


def _with_years(picker: Picker, text: str) -> str:
    """Replace each `{year}` by a year; years rise along the article."""
    parts = text.split("{year}")
    year = picker.between(1795, 1890)
    for index in range(1, len(parts)):
        parts[index] = f"{year}{parts[index]}"
        year += picker.between(4, 27)
    return "".join(parts)


def new_deck(picker: Picker) -> Deck:
    """Return a fresh deck over the lists of this module."""
    return Deck(picker, LISTS)
