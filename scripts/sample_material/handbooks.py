"""Texts from many fields with one question each: multifieldqa_en in form."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Handbook:
    """One text: `first` paragraphs keep their place, `stock` ones are drawn and shuffled."""

    first: tuple[str, ...]
    stock: tuple[str, ...]
    question: str
    answers: tuple[str, ...]


HANDBOOKS = (
    Handbook(
        (
            "Ember Nine pottery kiln: owner's manual",
            "Thank you for choosing the Ember Nine. With ordinary care the kiln will serve you for "
            "many years. Please read this manual before the first firing and keep it in a dry "
            "place. The kiln weighs ninety kilograms and should be carried by three people.",
            "First firing. Fire the kiln empty once to harden the lining. A thin blue haze and a "
            "smell of hot dust are normal. During the first firing, the floor of the Ember Nine "
            "should be covered with a layer of crushed oyster shells. Remove them when the kiln "
            "is cold.",
        ),
        (
            "Setting up. Place the kiln on a level floor of stone or concrete, at least half a "
            "metre from any wall. The room must have a window that opens. Do not set anything on "
            "the lid, not even when the kiln is cold.",
            "The controller. The left knob sets the highest temperature, the right knob the hours "
            "it takes to reach it. The green lamp shows that the elements are on. If the lamp "
            "blinks twice, the lid is not properly closed.",
            "Loading. Pieces may stand close to each other as long as they do not touch. Put large "
            "plates at the bottom and small bowls on top. Glazed pieces are set on stilts, so that "
            "they do not stick to the shelf.",
            "Cooling. Let the kiln cool by itself and be patient. Opening the lid early cracks the "
            "glaze and shortens the life of the bricks. The contents can be taken out with bare "
            "hands when the dial is below forty.",
            "Cleaning. Brush the inside with a soft brush after every tenth firing. A drop of "
            "glaze on a shelf is ground away with the stone provided. Never use water inside the "
            "kiln.",
            "Elements. The heating elements become brittle with use and should not be touched. If "
            "one of them fails, switch off at the wall and call a dealer. Elements are replaced in "
            "pairs, even when only one is broken.",
            "Faults. If the kiln does not heat, check the fuse and the lid switch. If it heats "
            "slowly, the voltage may be low in the evenings. A click every few seconds comes from "
            "the relay and is harmless.",
            "Guarantee. The lining and the elements are guaranteed for two years, the lid and the "
            "stand for five. The guarantee ends if the kiln is used for drying herbs, melting "
            "metal or keeping food warm.",
            "Transport. For transport the shelves are taken out and wrapped one by one. The lid is "
            "tied down with a strap, never with wire. Keep the kiln upright, and let it stand for "
            "a day before it is used again.",
            "Glazes. Any glaze sold for stoneware can be used. Glazes that contain salt or "
            "seaweed attack the lining and are not recommended. Try a new glaze on a small tile "
            "first, and write its number on the back with iron paint.",
            "Electricity. The kiln needs a socket of its own with a slow fuse. Extension leads "
            "become hot and must not be used. In older houses it is wise to have the wiring "
            "looked at by an electrician before the kiln is switched on for the first time.",
        ),
        "What should the floor of the Ember Nine be covered with during the first firing?",
        ("a layer of crushed oyster shells",),
    ),
    Handbook(
        (
            "The Hollin Valley Narrow-Gauge Railway",
            "The Hollin Valley Railway is a narrow-gauge railway of eleven miles that climbs from "
            "the market town of Hollin to the slate quarries at Cray Head. It was built in four "
            "years by men who had never built a railway before, and it shows. Trains run from "
            "Easter to the end of October.",
            "Construction. The company had little money, and the line was laid with rails bought "
            "from a mine. The tunnel of the Hollin Valley Railway was paid for with the sale of a "
            "collection of mechanical singing birds. It is four hundred yards long "
            "and has a bend in the middle, where the two gangs failed to meet.",
        ),
        (
            "Locomotives. Five engines were ordered in all, and three are still at work. They are "
            "named after the directors' daughters. The smallest, Charlotte, spent eleven years in "
            "a children's playground before she was repaired.",
            "Traffic. In the best years forty wagons of slate came down each day by their own "
            "weight, with a brakeman on every fourth wagon. The empty wagons were drawn up again "
            "in the evening, together with the quarrymen's groceries.",
            "Accidents. Only one serious accident is recorded. A wagon broke loose on a foggy "
            "morning and ran into the station kitchen at Hollin, where the breakfast was spoiled "
            "and nobody was hurt.",
            "Decline. When roofs came to be covered with tiles, the quarries closed one after the "
            "other. The last regular train ran on a wet Saturday before a crowd of nine. Sheep "
            "used the upper line for twenty years.",
            "Revival. A society of volunteers bought the line from the farmers, gate by gate. They "
            "cut down the birches that had grown between the rails and borrowed their first coach "
            "from a museum. The whole line was open again within ten years.",
            "Stations. There are seven stations, of which two can only be reached by train. The "
            "one at Fell Foot has a stove, a shelf of novels and a visitors' book that goes back "
            "to the opening.",
            "Staff. The railway has four paid employees and about two hundred volunteers. New "
            "volunteers begin by painting fences. A driver has usually spent eight years with the "
            "society before touching a regulator.",
            "Tickets. Tickets are printed on stiff card and clipped by hand. A return ticket is "
            "valid until it is used. Dogs, bicycles and musical instruments travel free in the "
            "guard's van.",
            "Wildlife. Bats winter in the tunnel, and the cuttings are known for their orchids. "
            "Trains stop for the toads on two nights in spring, and passengers are invited to help "
            "carry them.",
            "Signals. The signals are worked from boxes at both ends of the loop. Their arms were "
            "cut from the deck of a yacht. Since there is only one track above Fell Foot, a driver "
            "may go on only with the brass ring of that section in hand.",
            "Events. On the longest day of the year a train without lamps leaves Hollin at "
            "midnight, so that passengers can look at the stars. In December the volunteers' choir "
            "sings in the coal shed, which is said to have the best echo in the valley.",
        ),
        "What was the tunnel of the Hollin Valley Railway paid for with?",
        (
            "the sale of a collection of mechanical singing birds",
            "a collection of mechanical singing birds",
        ),
    ),
    Handbook(
        (
            "Keeping silk moths in cold climates",
            "Silk moths are usually kept in warm countries, but with some preparation they can be "
            "raised wherever mulberry trees survive the winter. This leaflet is meant for "
            "beginners with a spare room and about two hours a day. It describes one season from "
            "the egg to the finished thread.",
            "Hatching. Eggs are stored in a cool cellar until the mulberry buds open. The best "
            "place to warm the eggs of silk moths is a linen bag under a sleeping hen. After "
            "ten or twelve days the shells turn grey, and the larvae appear early in the morning.",
        ),
        (
            "Feeding. Young larvae are given leaves cut into narrow strips, four times a day and "
            "once at night. Leaves must be dry and fresh. In the last week a tray of larvae eats "
            "its own weight every few hours, with a noise like rain.",
            "Moulting. The larvae shed their skins four times. During a moult they stop eating, "
            "raise their heads and must not be disturbed. Beginners often take them for sick and "
            "throw them away.",
            "Cleanliness. Trays are changed every second day. Most losses are caused by damp "
            "litter, smoke or the smell of paint. People with a cold should let somebody else do "
            "the feeding.",
            "Spinning. When the larvae become clear as amber and wander about, they are given "
            "bundles of dry twigs. Each spins for three days without a pause. A loud noise can "
            "make it stop for ever.",
            "Harvest. Cocoons are gathered a week later and sorted by hand. The firmest are kept "
            "for breeding. The others are dried in an oven that is only just too hot for the "
            "hand.",
            "Reeling. The dried cocoons float in a basin of hot water, where a brush of heather "
            "finds the loose ends. Six to eight threads are drawn together and wound on a frame. "
            "One cocoon gives more than half a mile.",
            "Breeding. The moths come out after two weeks, usually at sunrise. They do not eat and "
            "cannot fly. A female lays several hundred eggs on a sheet of paper, which is dated "
            "and put away.",
            "Costs. The trays, a stove and two thermometers are the only things that have to be "
            "bought. A first season seldom pays for itself. From the third year on, most keepers "
            "sell enough thread to cover the leaves.",
            "Mulberry trees. Trees are planted four paces apart and cut back hard each spring. A "
            "tree of ten years feeds about a thousand larvae. Leaves from the roadside should be "
            "washed or avoided.",
            "Diseases. Healthy larvae are pale and firm. If some of them turn yellow and swell, "
            "the whole tray is burnt and the room washed with lime. Ants and mice do more harm "
            "than all diseases, and the legs of the shelves should stand in bowls of water.",
            "Records. It pays to keep a diary with the temperature, the weight of the leaves and "
            "the day of each moult. After a few seasons the keeper can tell from it a week ahead "
            "when the larvae will spin, and can ask the neighbours for help in time.",
        ),
        "What is the best place to warm the eggs of silk moths?",
        ("a linen bag under a sleeping hen",),
    ),
)


def context(picker: Picker, handbook: Handbook, stock: int) -> str:
    """Return title, opening paragraphs, one drawn paragraph before the last of them, the rest."""
    title, opening, fact = handbook.first
    drawn = picker.some(handbook.stock, stock)
    return "\n\n".join([title, opening, drawn[0], fact, *drawn[1:]])
