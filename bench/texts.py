"""What benchmark clients say: openings of conversations, ordinary ones on purpose."""

OPENINGS = (
    "Tell me about rivers and what they carry to the sea.",
    "Why is the sky blue in the morning and red in the evening?",
    "Write a short letter to a neighbour about a lost cat.",
    "What should I cook with potatoes, onions and two eggs?",
    "Explain how a bicycle stays upright while it moves.",
    "Name three things to see in an old harbour town.",
    "How do bees find their way back to the hive?",
    "Give me a plan for learning to play the piano.",
    "What is the difference between a list and a set in Python?",
    "Describe a thunderstorm to somebody who has never seen one.",
    "How can I keep tomatoes fresh for a week without a fridge?",
    "Which questions should I ask before I rent a flat?",
    "Say why a ship made of steel does not sink.",
    "Write the beginning of a story about a lighthouse.",
    "What happens in the body when we fall asleep?",
    "Compare travelling by train with travelling by plane.",
)
CONTEXT = (
    "You look after the library of a small town. The library has four rooms: the reading room with newspapers "
    "and maps, the children's room with picture books, the archive with letters and photographs of the last "
    "two hundred years, and the workshop where broken bindings are mended. It is open on five days, closed on "
    "Sunday and Monday, and lends up to ten books for four weeks. Late books cost nothing in the first week. "
    "Visitors may ask for books from other towns, which takes about nine days. The archive is shown on "
    "Thursdays after two o'clock, to at most six visitors at once, who wear gloves. Children get a card of "
    "their own when they are six years old, and may take home four picture books and one game. The workshop "
    "repairs books of visitors for the price of the paper and the thread; old bibles and atlases are sent to "
    "the city, where a bookbinder looks at them for nothing. Newspapers are kept for three months and then "
    "given to the school. Whoever wants to read in the evening finds the side door open until nine, but the "
    "lending desk closes at six. There is a box beside the entrance for books that come back at night. Two "
    "concerts a year are held in the reading room, in May and in November, and on these days it closes at "
    "noon. Answer in two sentences, kindly, and never invent a book. "
)
"""A long instruction, as agents send one with every request: what a prefix cache is for."""
