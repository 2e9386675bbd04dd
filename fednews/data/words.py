"""The words that synthetic titles are made of: of categories, of their topics, and of none.

Written for this project; no word list or title of a real data set was used. Every category has words
of its own and a few topics (MIND's subcategories) with theirs, so that a title tells its topic.
"""

from typing import NamedTuple


class Topic(NamedTuple):
    """A topic, its category, the words of the category and its own words."""

    name: str
    category: str
    category_words: tuple[str, ...]
    words: tuple[str, ...]


# "# category" and its words, then "- topic" and its words, over as many lines as it takes
_TOPICS = """
# news
officials report statement authorities investigation witnesses residents emergency public nation capital headline
- newspolitics
senate congress president campaign lawmakers ballot candidate impeachment governor committee debate voters veto
legislation
- newscrime
police suspect arrested murder robbery detectives charged sheriff prison shooting burglary jury victim homicide
- newsworld
embassy treaty border sanctions refugees minister parliament troops ceasefire diplomat rebels envoy kingdom protests
- newsscience
spacecraft asteroid telescope fossil scientists laboratory orbit galaxy experiment physicists species dinosaur rover
molecule
- newseducation
school teachers students college classroom principal tuition curriculum campus graduation professors kindergarten
literacy exam
- newsenvironment
climate emissions wildfire pollution conservation glacier drought recycling ecosystem carbon habitat coral renewable
deforestation
- newslocal
mayor council neighborhood firefighters volunteers downtown courthouse library zoning parade bridge sewer township
landfill
# sports
season coach team score fans league injury roster victory championship playoffs rookie defeat rivals
- football_nfl
quarterback touchdown linebacker interception fumble kickoff receiver sideline punt huddle lineman gridiron blitz
scrimmage
- basketball_nba
dunk rebound basketball backcourt layup buzzer warriors assists hoop dribble tipoff jumper sixers lakers
- baseball_mlb
pitcher inning homer bullpen shortstop outfielder baseball catcher dugout strikeout slugger bunt curveball yankees
- icehockey_nhl
goaltender puck hockey defenseman faceoff penalty rink stick stanley skates blueline zamboni overtime shutout
- golf
fairway birdie golfer bogey putter caddie masters eagle tee bunker clubhouse handicap swing links
- soccer
striker midfielder goalkeeper soccer offside corner transfer premier header crossbar pitch winger fullback derby
- racing
nascar lap driver crew qualifying grid checkered throttle speedway chassis podium pole pileup raceway
# finance
money billion company percent investors economy price growth cash executives quarter
- markets
stocks shares nasdaq index bonds rally futures traders volatility equities dividend selloff bullish yields
- finance-companies
merger startup acquisition layoffs retailer bankruptcy chairman subsidiary factory supplier brand antitrust
warehouse earnings
- personalfinance
savings retirement mortgage pension budget loan debt insurance taxes credit refund ira checking paycheck
- realestate
housing condo realtor foreclosure listing landlord tenant rent mansion penthouse apartment appraisal homeowners
acreage
# foodanddrink
delicious kitchen flavor taste chef meal eat ingredients menu hungry dish
- recipes
bake oven casserole roasted garlic butter skillet simmer sauce dough whisk marinade saute tablespoon
- restaurants
diner waiter burger pizzeria bistro takeout waffle patio steakhouse buffet brunch reservations tacos sushi
- desserts
chocolate cookies cake frosting pie caramel sprinkles pudding cupcake vanilla gelato brownie pastry marshmallow
- beverages
coffee wine beer cocktail brewery espresso tea whiskey vineyard bourbon lemonade bartender latte tequila
# lifestyle
family couple style women advice everyday happiness beautiful friends celebrate modern
- lifestyleroyals
prince duchess queen palace royal meghan tiara throne monarch duke crown coronation buckingham heir
- homeandgarden
garden decor sofa closet declutter paint bathroom plants wallpaper furniture backyard lamp pillows carpet
- relationships
wedding dating bride marriage divorce romance proposal breakup spouse engaged anniversary bridesmaid honeymoon
soulmate
- pets
puppy kitten dog rescue shelter paws adopt veterinarian leash terrier tabby labrador whiskers retriever
# travel
trip visitors vacation destination tourists journey scenic miles world adventure luggage
- travelair
airline flight airport passengers runway pilot boeing cockpit turbulence boarding layover cabin jetlag baggage
- traveloutdoors
hiking trail canyon campground waterfall mountain summit kayak wilderness backpack yosemite ranger cliffs meadow
- travelcities
museum cathedral paris london tokyo skyline hotel cobblestone landmark subway rome boulevard venice plaza
- travelbeaches
beach island resort cruise snorkel lagoon palm hawaii surf caribbean sand yacht tropical shoreline
# video
watch footage camera clip viral moment caught recorded viewers screen hilarious
- animals
bear elephant monkey shark penguin giraffe alligator squirrel owl dolphin moose raccoon turtle panda
- stunts
skateboard parachute daredevil acrobat somersault motorcycle trampoline unicycle bungee wingsuit juggler backflip
tightrope stuntman
# weather
forecast temperature degrees warning region conditions meteorologist advisory sky expected
- winterstorms
snow blizzard ice freezing sleet frost plow arctic shovel snowfall chilly icicles flurries slush
- severestorms
tornado hurricane thunderstorm hail lightning evacuate floodwaters landfall gusts cyclone funnel surge downpour
sirens
- sunshine
heatwave sunny humidity sunshine warm breeze pollen drizzle rainbow cloudless sunscreen muggy sweltering mild
# health
doctors patients study risk body symptoms healthy medical treatment experts wellbeing
- fitness
workout muscles yoga squats treadmill gym cardio stretching dumbbell marathon abs jogging pushups trainer
- nutrition
diet vitamin protein calories vegetables fiber keto sugar fasting supplements vegan carbs antioxidants avocado
- medical
cancer vaccine surgery virus hospital diabetes antibiotics tumor transplant nurse influenza chemotherapy diagnosis
measles
- mentalhealth
anxiety depression therapy mindfulness stress sleep meditation burnout loneliness insomnia counseling grief
psychologist phobia
# autos
car vehicle road wheels model dealership engine drive garage horsepower
- electriccars
battery tesla charging hybrid electric kilowatt range plug autopilot volt prius hydrogen sensor emission
- classiccars
vintage mustang corvette restored chrome camaro convertible collector hemi roadster auction carburetor cadillac barn
- trucks
pickup towing silverado rugged jeep payload tailgate ford diesel bronco trailer suspension axle hauling
# tv
show episode series television network finale viewers host cast streaming
- tvreality
bachelor contestant idol judges elimination survivor housewives audition rose wheel jeopardy dancing gameshow
kardashian
- tvdrama
thrones netflix detective spinoff showrunner cliffhanger westworld medieval sitcom anthology reboot screenwriter
dragons antihero
# music
song album singer concert tour fans lyrics stage performance sound
- musiccountry
country nashville banjo fiddle saloon opry cowboy bluegrass twang dolly ballad harmonica yodel boots
- musicpop
pop taylor beyonce billboard choreography grammy chart diva remix single duet vocals falsetto superstar
- musicrock
guitar drummer rock metal bassist punk reunion amplifier riff vinyl mosh grunge encore beatles
# movies
film director actor scene theater audience premiere script screen hollywood
- superheroes
marvel batman superhero villain avengers sequel joker franchise spiderman cape gotham thanos trilogy mutant
- moviesclassic
oscar subtitles noir hitchcock western remastered studio silent bogart projector monroe musical archive matinee
# entertainment
celebrity famous star gossip interview photos spotted fame rumor revealed
- redcarpet
gown designer dress glamorous stylist jewelry hairstyle makeup heels couture sequins tuxedo paparazzi fashion
- gaming
console nintendo gamer playstation xbox esports multiplayer fortnite controller pixel quest zelda arcade minecraft
# kids
children play fun learn little parents story toy imagination
- kidscrafts
crayons glitter origami stickers scissors puppet coloring lego clay beads glue cardboard slime yarn
- kidstales
fairy dragon wizard unicorn castle mermaid giant pirate bedtime princess goblin treasure magic dwarf
"""

# from the most to the least frequent
_COMMON = """
the to of in a and for on is with at from as after his by her this how it are that your new be you what an who will
out more over up has not their was why one about first he all could back say when get us they best top now into two
she time just before here its than make can have day year been off may says old people against three down but no
years these home big life most own ever last our way like do still where high every next know things during long
look take some very right good great real left help week see go end under want made through biggest finally another
need them were had him my if or so then there around between while since without again never always nearly almost
behind across inside outside toward despite because until among many few several each both other such only even also
much less later early soon already today tonight yesterday tomorrow morning night weekend month hours minutes ago
away together apart open close start begin finish turn move keep give find show tell ask call try leave bring put
set run hold stand face return wait plan change deal hit win lose fall rise grow cut add pay buy sell send meet join
lead follow happen become remain seem appear claim deny admit explain reveal consider expect hope worry wonder
believe think feel small large huge major minor key main final full half whole second third four five six seven ten
hundred better worse worst easy hard simple strange rare common special secret surprising amazing shocking important
possible likely different same young older newest latest recent former future past present local national reason
answer question idea fact list guide photo place point side part line name word number group man woman guy someone
everyone nobody anyone something everything nothing anything
"""


def _parse(text: str) -> tuple[Topic, ...]:
    topics, shared, words = [], [], []
    category = ""
    for line in text.strip().splitlines():
        if line.startswith("# "):
            category, shared = line[2:], []
            words = shared
        elif line.startswith("- "):
            words = []
            topics.append((line[2:], category, shared, words))
        else:
            words += line.split()
    return tuple(Topic(name, category, tuple(shared), tuple(words)) for name, category, shared, words in topics)


TOPICS = _parse(_TOPICS)
COMMON = tuple(_COMMON.split())
