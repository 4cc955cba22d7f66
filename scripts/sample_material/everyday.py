"""Sentences about everyday things with open places, and the words that fill them.

The material of the default haystack. A paragraph takes its sentences from one theme; `{who:a}` is
the same person in one paragraph, every other place is filled anew. Nothing here may name San
Francisco, a sandwich or a magic number: needles do.
"""

from __future__ import annotations

WORDS: dict[str, tuple[str, ...]] = {
    name: tuple(item.strip() for item in text.split("|"))
    for name, text in {
        "who": "Agnes|Bertram|Celia|Dorothea|Edmund|Felix|Greta|Harold|Ingrid|Jasper|Katrin|Leopold|Mabel|Nils|Odette|Percival|Rosalind|Simon|Thea|Ulrich|Verena|Wilfred|Ysolde|Ansel|Brigid|Conrad|Della|Ernest|Flora|Gideon|Hester|Ivo|Judith|Klaus|Lavinia|Magnus|Nora|Oswin|Petra|Rufus|Selma|Tobias|Ursula|Vincent|Winifred",
        "kin": "an aunt|a cousin|a grandfather|a neighbour|a younger sister|an old schoolfriend|a nephew|a former colleague|a great-uncle|a brother-in-law|a godmother|a lodger|a stepson|a widowed aunt|an elder brother|a second cousin",
        "trade": "a cooper|a saddler|a piano tuner|a ferryman|a clockmaker|a retired surveyor|a bookbinder|a beekeeper|a glazier|a seamstress|a roofer|a lock-keeper|a travelling dentist|a basket weaver|a signalman|a stonemason|a milliner|a chimney sweep|a cheesemonger|a proofreader|a shepherd|a gravedigger|a cartographer|a night porter|a tinsmith|a hedge layer",
        "town": "Ivelmouth|Graum|Quarrendon|Varne|Tarn Abbey|Low Harrow|Pellworth|Skerrin|Oakhanger|Dunmoor|Little Stenning|Marrow Bridge|Alderfoot|Cold Overton|Brackwater|Helmsby|Nettlefield|Upper Sall|Wickering|Farrowdale|Saint Corvin|Thornley Gate|Pike's End|Easter Combe",
        "time": "early in the morning|towards noon|just before supper|late on a Sunday|on the first warm day|in the last week of October|between two showers|shortly after the bell|on market day|at the end of the month|during the long frost|when the lamps were lit|in the hour before dawn|on a grey Tuesday|around teatime|the day after the fair|at the turn of the tide|in the slack part of the afternoon|on the eve of the harvest|one windy evening|at half past four|after the second post|in the middle of a thaw|on the shortest day of the year",
        "weather": "the rain had stopped|a thin mist lay over the fields|the wind had gone round to the east|the sky was the colour of slate|it was too hot to sit indoors|frost had drawn ferns on the panes|a fine drizzle was falling|the sun stood low and very yellow|snow was sliding off the roofs|thunder could be heard beyond the hills|the air smelled of wet straw|the puddles were skinned with ice|clouds were piling up over the estuary|not a leaf was moving|hail had flattened the lettuces|the fog had come right up to the gate",
        "thing": "a brass kettle|a cracked jug|a bundle of letters|a pocket compass|a folding chair|a tin of buttons|a walnut cupboard|a pair of scissors|a hurricane lamp|a wicker pram|a barometer|a music stand|a garden sieve|a set of copper pans|a rocking horse|a sewing machine|a stuffed owl|a boot jack|a coil of rope|a china tureen|a child's sledge|a mirror without a frame|a bicycle pump|a hatbox|a coffee mill|a map of the canals|a paraffin stove|a birdcage|a leather satchel|a doorstop shaped like a hedgehog|a card table|a bellows",
        "food": "barley soup|pickled plums|a loaf of rye bread|cold mutton|gooseberry tart|a wheel of hard cheese|boiled eggs|smoked eel|pea pudding|stewed rhubarb|a basket of pears|oatcakes|potato dumplings|ginger biscuits|a pot of quince jelly|roast chestnuts|leek pie|buttermilk|a string of onions|poppy seed cake|salted herring|damson cheese|a jar of honey|warm milk with nutmeg|bread and dripping|currant buns",
        "plant": "the runner beans|an old pear tree|the sweet peas|a row of cabbages|the hawthorn hedge|two gooseberry bushes|the marrows|a climbing rose|the medlar|some late dahlias|the asparagus bed|a bay in a tub|the lavender|a quince against the wall|the rhubarb|an espaliered apple|the broad beans|a lilac|the hollyhocks|a vine that had never borne|the parsnips|the ivy on the shed",
        "animal": "a grey goose|the neighbour's terrier|a lame pony|two bantam hens|a tortoiseshell cat|the mule|a jackdaw|a litter of piglets|the old sheepdog|a hedgehog|a pair of swallows|the goat|a heron|the bull calf|a tame crow|an elderly spaniel|the ferret|a blackbird|the milk cow|several ducks",
        "place": "the back kitchen|the loft|the station buffet|the lending library|the ropewalk|the village hall|the wash-house|the orchard|the harbour office|the chapel porch|the cellar|the upper landing|the schoolroom|the boat shed|the post office|the cobbled yard|the greenhouse|the waiting room|the bakery|the allotments|the bandstand|the tannery|the dairy|the old sluice|the reading room|the hayloft",
        "tool": "a chisel|a spirit level|a pair of pliers|a plumb line|a wooden mallet|a hand drill|a soldering iron|a rasp|a marking gauge|an adjustable spanner|a pot of glue|a bradawl|a tack hammer|a fretsaw|a palette knife|a pair of tweezers|a vice|a scythe|a trowel|a wheelbarrow",
        "fault": "the hinge had rusted through|the spring was too weak|one of the legs was shorter than the others|the wood had warped in the damp|someone had used the wrong screws|the thread was worn smooth|mice had been at the lining|the glue had turned to powder|a bearing had run dry|the seam had been stitched twice already|the pipe sloped the wrong way|the wick had been trimmed too short|two slates had slipped|the handle had been put on backwards|the washer had perished|the latch no longer met its plate|the rope had frayed where it crossed the beam|a mouse had nested in the works",
        "feeling": "was secretly relieved|felt rather foolish|could not help smiling|was more tired than expected|had never been so hungry|was in no hurry at all|thought it a great improvement|pretended not to notice|decided to say nothing|was proud of it for weeks|regretted it before nightfall|took it as a compliment|felt it was time to go home|wondered what all the fuss was about|slept well for the first time that month|blamed the weather, as usual",
        "small": "the kettle had begun to sing|somebody was practising scales upstairs|the clock struck and was wrong|a cart went by with a loose wheel|the cat asked to be let out|the baker's boy whistled at the gate|the fire settled in the grate|a door banged somewhere along the lane|the postman came up the path|a wasp was exploring the jam|the children were shouting in the orchard|the church bell counted the hour|the lamp began to smoke|a moth had found the candle|the tap went on dripping|the train for the coast went over the viaduct",
        "saying": "a thing mended twice is a thing kept|nobody ever drowned in a teacup|a short letter is soon answered|good soup forgives the cook|you cannot hurry a hen|the last nail is always the bent one|a dry cellar is worth two parlours|an open gate is an invitation to goats|new brooms leave old corners|whoever rows must sit backwards|patience costs less than paint|a warm kitchen makes a small house large|rain asks no one's leave|it is the second frost that counts|borrowed ladders are always too short|a full shed is a quiet conscience",
        "colour": "dark green|the blue of old enamel|a dull red|cream|mustard yellow|a faded pink|slate grey|the brown of strong tea|white, or nearly|bottle green|a colour nobody could name|pale turquoise",
        "count": "two|three|four|five|six|seven|eight|nine|ten|eleven|a dozen|fourteen|some twenty|nearly thirty|about forty",
        "span": "an hour|the whole afternoon|eleven years|most of the winter|a fortnight|three summers|half a lifetime|the length of a sermon|a week and a day|two generations|the best part of a month|the time it takes to boil an egg|several seasons|a long weekend",
        "topic": "the price of coal|the new curate|drainage|the proper way to store apples|a wedding in the next parish|the ferry timetable|whether the winters had been colder|a missing umbrella|the habits of moles|the brass band|bread|the repair of the weir|an inheritance|the best cure for hiccups|the school play|starlings|the width of the road|knitting patterns|a lost dog|the post from abroad",
        "drink": "tea|cider|black coffee|elderberry wine|lime cordial|hot milk|ginger beer|mint tea|small beer|blackcurrant cordial|cocoa|barley water",
        "road": "the towpath|the upper road|a sunken lane|the sea wall|the drove|the path behind the mill|the turnpike|the steps to the quay|the causeway|the cart track over the common|the avenue of limes|the railway cutting|the footbridge|the ridge",
        "paper": "a receipt|a recipe for soap|a theatre programme|the minutes of a meeting|an unpaid bill|a pressed fern|a page of sums|a pattern for mittens|the plan of a drain|a postcard of a lighthouse|a list of birds|a school report|a ticket for a raffle|half a sermon|a timetable from before the war|directions to a house that had been pulled down",
        "cloth": "grey flannel|striped ticking|unbleached linen|corduroy|an old velvet curtain|sailcloth|checked gingham|good tweed|muslin|oilcloth|a tartan rug|felt",
        "job": "whitewash the scullery|sharpen the knives|turn the mattresses|prune the hedge|count the spoons|clear the gutters|oil the pump|label the preserves|re-hang the shutters|beat the carpets|mend the fence by the stile|bring in the washing|stack the logs|wind the clocks|air the spare room|sort the potatoes|scrape the old paper from the wall|dig out the ditch|polish the harness|darn the blankets|grease the axles|bottle the plums",
    }.items()
}

THEMES: dict[str, tuple[str, ...]] = {
    "kitchen": tuple(
        """
        {Time}, {who:a} put {food} on the table and announced that nobody was to mention {topic} until the plates were empty.
        The recipe, which had come from {kin} in {town}, asked for {count} spoonfuls of treacle and for more patience than {who:a} possessed.
        While the dough rose, there was time to {job}, to look for {thing}, and to wonder whether {small}.
        There were {count} at table, among them {trade} who ate {food} with a spoon and praised it between mouthfuls.
        {Food} kept for {span} if it stood on the north side of {place}, and for half as long if anyone talked near it.
        {Who:a} held that {saying}, and stirred the pot with the handle of {tool} because the ladle had been lent to {kin}.
        By the time {small}, the smell of {food} had reached {place} and brought {count} people to the door.
        The stove was {colour}, stood on a sheet of zinc, and had been bought from {trade} after {span} of bargaining.
        Nobody could say who had first served {drink} with {food}, but in {town} it had been done for {span} and was not discussed.
        {Who:b} burned the first batch, scraped it for {animal}, and began again with {count} eggs and a clearer head.
        """.strip().split("\n")
    ),
    "repair": tuple(
        """
        {Who:a} took {thing} to pieces on a sheet of newspaper and found, as {trade} had foretold, that {fault}.
        It could have been put right in {span} with {tool}, but {tool} was in {place} and {place} was locked.
        When {weather}, {who:a} carried {thing} out to the step, where the light was better and where {animal} could watch.
        The repair cost {count} coins and {span} of waiting, and at the end of it {who:a} {feeling}.
        {Fault_}, and so {who:b} fetched {tool}, a candle end and a saucer of vinegar, in that order.
        Inside {thing} somebody had left {paper}, folded {count} times and signed by {kin} of whom nobody had heard.
        {Who:b} painted it {colour}, let it dry for {span}, and then discovered that {fault} as well.
        In {town} there was {trade} who mended such things while {small}, and who never asked for more than {drink} and conversation.
        One must not force it, said {who:a}: {saying}, and besides, {tool} was the only one in the house.
        After {span} of trying, {thing} worked perfectly in {place} and not at all anywhere else, which {who:b} put down to the damp.
        """.strip().split("\n")
    ),
    "garden": tuple(
        """
        {Who:a} had put in {plant} {time}, against the advice of {kin}, and by midsummer {who:a} {feeling}.
        {Weather}, and {plant} had to be covered with {cloth} held down by {count} bricks.
        Between {plant} and the wall lived {animal}, which came out when {small} and ate from a saucer.
        The soil at {town} was heavy and held the wet, so that one had to {job} before a single row could be sown.
        {Who:b} measured {plant} with a piece of string, wrote the figure on {paper}, and lost it in {place}.
        It was {trade} who explained that {plant} wanted lime, and that {saying}.
        {Animal} had got in again {time}, and all that remained of the seedlings was {count} stalks and a label.
        They sat on upturned buckets with {drink} and argued about {topic} until {weather} and there was nothing for it but to go in.
        From the far end of {road} one could see {plant}, a water butt painted {colour}, and {who:a} asleep in a chair.
        A barrow of dung was worth {food} in those days, and {who:b} wheeled {count} of them along {road} without spilling any.
        """.strip().split("\n")
    ),
    "walk": tuple(
        """
        They set out along {road} {time}, with {food} in a knapsack and {weather}.
        {Who:a} walked in front and talked about {topic}, and {who:b}, who had heard it before, counted {count} gates and a stile.
        Half way to {town} there was a bench given by {trade}, with room for {count} and a view of {place}.
        At the bend in {road} {animal} stood and looked at them for {span}, and then went about its business.
        They asked the way of {trade}, who drew it on {paper} and left out the river.
        {Weather} by then, so they waited in {place} and shared {drink} with {kin} of the owner.
        Somebody had hung {thing} from the signpost at {town}, for reasons that {road} did not make clear.
        It was farther than {who:b} had said, and when at last {small} it was agreed that {saying}.
        On {road} one met {trade} every {count} minutes or nobody at all, and {who:a} preferred the second.
        They came home by {road} with mud to the knees and {plant} in a handkerchief, and {who:b} {feeling}.
        """.strip().split("\n")
    ),
    "shop": tuple(
        """
        The shop in {town} sold {food}, {thing} and lengths of {cloth}, and one asked for each at a different counter.
        {Who:a}, who kept the accounts, wrote everything down on the back of {paper} and added it up when {small}.
        {Time} {trade} came in for {tool}, stayed for {span}, and left with {food} instead.
        The shutters were {colour} and had not met in the middle since {fault}.
        A bell hung over the door, but {animal} had learned to ring it, and so {who:a} looked up only at the {count} o'clock train.
        Credit was given to {trade}, to {kin} of the vicar, and to anyone who could talk about {topic} without losing the thread.
        {Who:b} weighed out {food} on scales that were right to within {count} grains, provided that nobody leaned on {thing}.
        In the window stood {thing}, which was not for sale, beside {thing}, which nobody would buy.
        A card beside the till said that {saying}, and under it {who:b} had pencilled the hours of the ferry.
        When {weather}, people came in to stand by the stove, and went out again with {drink} inside them and {cloth} under one arm.
        """.strip().split("\n")
    ),
    "letters": tuple(
        """
        The letter had been posted in {town} {time} and had taken {span} to come as far as {trade} walks before breakfast.
        {Who:a} read it in {place}, once quickly and once aloud, while {small}.
        It dealt with {topic}, with the health of {animal}, with {plant}, and only then with the question.
        Enclosed was {paper}, which {who:b} held up to the light and then put behind {thing}.
        {Who:b} answered by return that {saying}, and that {thing} would follow by carrier as soon as {weather}.
        There was a postscript about {food}, written round the edge in an ink that had been {colour} once.
        {Who:a} kept such letters for {span} in a box lined with {cloth}, tied up with string from {thing}.
        The envelope had been used before, and under the name of {who:b} one could read that of {trade} in {town}.
        Having sealed it, {who:a} remembered {topic}, opened it over the spout of a kettle, and {feeling}.
        No reply came for {span}, and then {count} came together, one of them meant for {kin} in {town}.
        """.strip().split("\n")
    ),
    "house": tuple(
        """
        The house stood at the top of {road}, with {count} chimneys, a door painted {colour}, and {plant} under the window.
        From {place} one heard everything that happened in {place}, and {who:a} heard that {small}.
        In the passage stood {thing}, and it was the custom to touch it before going to {town}.
        {Kin_} had once slept in the room over {place} for {span} and left behind {thing} and a smell of camphor.
        The floor sloped so that a marble put down beside {thing} would roll, after {span}, to the feet of whoever sat by the fire.
        {Time} it was {who:b}'s turn to {job}, and {who:b}'s habit to be found in {place} reading {paper}.
        The curtains had been made from {cloth} by {trade}, and let in a light that turned everything {colour}.
        {Who:a} meant to {job} before the visitors came, but {weather} and the day went by.
        There was a stair that creaked, and {count} that did not, and {animal} knew which was which.
        Every spring somebody proposed to {job}, everyone agreed that {saying}, and the matter rested there.
        """.strip().split("\n")
    ),
    "work": tuple(
        """
        {Who:a} had been {trade} in {town} for {span} and still could not pass {thing} without turning it over.
        The work began {time}, when {weather}, and went on until somebody remembered {drink}.
        An apprentice was expected to {job}, to carry {tool}, and to hold no opinion on {topic} for the first {count} months.
        {Who:b} learned it from {kin}, who had learned it by watching through the window of {place}.
        There were {count} ways of doing it, of which {trade} used one, {trade} another, and {who:a} all of them on the same day.
        The bench was covered with {cloth} so that {tool} would not roll off whenever {small}.
        It was slow, and paid in {food} as often as in coins, but {who:b} {feeling} and stayed.
        A good edge, said {who:a}, lasts for {span}; a bad one lasts until {trade} wants to borrow {tool}.
        {Time}, an order arrived from {town} for {count} of the large kind, in {colour}, and no one had so much as the handles.
        When it was finished they stood it in {place}, walked round it {count} times, and agreed that {saying}.
        """.strip().split("\n")
    ),
    "animals": tuple(
        """
        {Animal} belonged to nobody, slept in {place}, and was fed by {who:a}, by {trade} and by the whole of the infants' class.
        {Time} it was seen on {road} with {food} in its mouth and no sign of remorse.
        {Who:a} built a house for it out of {thing} and {cloth}, and it moved in after {span} of thinking it over.
        {Animal} would not cross {road} while {small}, and no argument of {who:b}'s could persuade it.
        There had been {count} of them before {weather}; afterwards they counted {count} and could not explain the difference.
        It took {trade}, {who:b} and {tool} to get {animal} out of {place}, and it went back in through the other door.
        {Who:b} wrote to {town} for advice and was sent {paper} together with a tin of ointment.
        {Animal} had opinions about {topic}, or so {who:a} maintained, and showed them by sitting on {thing}.
        Towards {plant} it behaved like {kin} at a funeral, keeping close and taking a little of everything.
        In the evening {animal} came to the step, accepted {food} from {who:a}, and looked as if it knew that {saying}.
        """.strip().split("\n")
    ),
    "evening": tuple(
        """
        {Time} the lamps were brought in, {small}, and {who:a} went on with the story where it had been left.
        They played cards for buttons; {who:b} lost {count}, won {count} back, and {feeling}.
        {Who:a} knitted something in {colour} which was to be a surprise for {trade} and was already longer than {thing}.
        There was {drink}, there was {food}, and for those who did not care for either there was {topic}.
        From {road} came the sound of {animal}, and then of {trade} telling it to be quiet.
        {Kin_} from {town} played the harmonium until {weather}, leaving out the difficult notes.
        {Who:b} read aloud from {paper}, doing all the voices, and had to stop when {small}.
        Nobody wanted to be the first to {job}, so they sat on for {span} and let the fire decide.
        Somebody recalled how {who:a} had once mistaken {thing} for {kin} in the dark, and it was told again from the beginning.
        At last {who:b} yawned, remarked that {saying}, and carried {thing} up to {place} for the night.
        """.strip().split("\n")
    ),
    "meeting": tuple(
        """
        The committee met in {place} {time}, with {trade} in the chair and {who:a} taking notes on the back of {paper}.
        The first item was {topic}, on which {who:b} spoke for {span} without once looking up.
        It was proposed to {job}; {trade} was in favour, {kin} of the mayor was against, and {count} were asleep.
        {Who:a} pointed out that {fault}, and that nothing could be decided while {weather}.
        A vote was taken by putting beans into {thing}, and there turned out to be {count} more beans than people.
        {Trade_} from {town} offered to do it for {food} and the loan of {tool}, which was thought very fair.
        Under any other business {who:b} asked about {topic}, as at every meeting for {span}.
        The treasurer reported that there remained {count} shillings, {thing}, and a promise from {trade}.
        Someone had brought {animal}, which was ruled out of order and given {food}.
        They parted on {road} agreeing that {saying}, though not on who had said so first.
        """.strip().split("\n")
    ),
    "journey": tuple(
        """
        The coach for {town} left {time}, with {who:a} on the outside and {thing} on {who:a}'s knees.
        Opposite sat {trade} with {animal} in a basket, who wished to hear everything about {topic}.
        At the {count} mile post {fault}, and everybody got down and offered advice.
        {Who:b} passed round {food} wrapped in {cloth}, and {small} for as long as anyone chewed.
        The inn gave them a room above {place} with {count} beds in it, one of them occupied by {trade}.
        {Weather} the whole way, and {who:a} saw nothing of the famous view but a signpost to {town}.
        They changed at a station where {small}, where the clock had no hands, and where one could buy {drink} through a hatch.
        A porter took {thing} for {kin} of theirs, apologised to it, and had to be given a coin.
        {Who:a} had brought {tool} in case, and when it was needed on {road} {who:a} {feeling}.
        The last stretch was by water, past {place} and {plant}, with {trade} at the oars explaining that {saying}.
        """.strip().split("\n")
    ),
    "school": tuple(
        """
        In the school at {town} they learned the rivers {time}, and sums when {weather}.
        {Who:a} drew {animal} on the slate so well that the teacher, who was also {trade}, let it stand for {span}.
        The inspector asked {who:b} what {thing} was for, and received an answer that took {span}.
        There were {count} pegs for {count} coats, and on the last of them hung {thing} that had been there since the founding.
        For the play they needed {animal}, {count} crowns made of {cloth}, and somebody who could be thunder.
        {Who:b} was the thunder, with {tool} and a sheet of tin, and {feeling}.
        A prize was given for neatness, and it was {paper} framed in {colour} by {trade}.
        At noon everybody unwrapped {food}, and exchanges were made in {place} according to rules older than the building.
        The big ones were sent to {job}, the small ones to look for {animal}, and the teacher sat down with {drink}.
        Over the blackboard it said that {saying}, and below it {who:a} had once written something about {topic}.
        """.strip().split("\n")
    ),
    "weather": tuple(
        """
        {Weather} {time}, and in {town} they took it for a sign and set about to {job}.
        {Who:a} kept a book of such things and could show that nothing of the kind had come {time} for {span}.
        The river came up as far as {place}, floated {thing} out into {road}, and went down again without a word.
        {Trade_} said that it would last {span}, {trade} that it would not, and {who:b} hung out the washing in {place} and waited.
        When {weather}, {animal} came indoors of its own accord, and one knew to shut up {place}.
        The wind took {count} tiles, the lid of {thing}, and a hat that {who:a} had borrowed from {kin}.
        They burned {plant} that night, and somebody's {thing_}, and told each other that {saying}.
        {Who:b} went along {road} with {tool} to see what was left, and found {food} on a wall and nobody about.
        By morning everything was {colour}, {small}, and the whole of {town} seemed to be holding its breath.
        {Who:a} tapped the glass, which pointed to change as it had done for {span}, and went to {job}.
        """.strip().split("\n")
    ),
    "collecting": tuple(
        """
        {Who:a} collected {thing_}s of every kind, and had room for nothing else but {food}.
        The finest had come from {trade} in {town} in exchange for {food} and {span} of silence.
        Each bore a label in {colour} with the date, the weather and whatever {who:a} had been thinking about {topic}.
        {Who:b} collected nothing but {paper}, and was inclined to look down on those who needed shelves.
        There was a society, which met in {place} {time} and consisted of {who:a}, {trade} and {animal}.
        Once {kin} sat on the {count} best ones, and {who:b} {feeling}.
        To clean them one used {drink}, a scrap of {cloth} and, where {fault}, the tip of {tool}.
        A visitor from {town} offered {thing} for the whole collection and was shown to {road}.
        {Small_} as they bent over the glass case, and for {span} nobody spoke.
        It is not the having, said {who:b}, putting the lid back, but the looking; and anyway {saying}.
        """.strip().split("\n")
    ),
    "music": tuple(
        """
        The band practised in {place} {time}, and {who:a} played the part that nobody else would learn.
        There were {count} cornets, a drum mended with {cloth}, and {trade} who had brought {thing} and was allowed to stay.
        They had been working at one march for {span}, and had got as far as the place where {small}.
        {Who:b} conducted with {tool}, having left the baton in {town}, and stopped only for {drink}.
        The audience was {kin} of the drummer, {animal}, and {count} people sheltering because {weather}.
        In the slow movement {fault}, and {who:a} went on alone and {feeling}.
        {Trade_} wrote in the guest book that {saying}, which was taken for praise.
        Between the pieces there was {food}, and much talk of {topic}, and someone sat on {thing}.
        {Who:b} had found the music on the back of {paper}, in a hand {colour} with age, and swore it was by {trade}.
        They marched home by {road} in {count} different keys, and {animal} joined in at the corner.
        """.strip().split("\n")
    ),
}
