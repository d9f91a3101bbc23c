"""The 20 texts of the answers test: (name, text or a pair of file and slice, tokens kept).

The short ones were written for this test; the long ones are cut from what ships with Debian
and Python. What counts afterwards are the token ids stored in answers.bin.
"""
import pydoc_data.topics
import inspect
import textwrap
import heapq


def license_text(name):
    with open("/usr/share/common-licenses/" + name, encoding="utf-8") as f:
        return f.read()


def chat(*turns):
    roles = ["system", "user", "assistant"]
    out = ""
    for i, turn in enumerate(turns):
        role = "system" if i == 0 else roles[1 + (i + 1) % 2]
        out += f"<|im_start|>{role}\n{turn}<|im_end|>\n"
    return out


HARBOUR = """The harbour was quiet before the sun came up. Two men carried a net along the pier and did
not speak, because there was nothing left to say about the weather. By the time the ferry
arrived, the fish had been sorted, weighed and covered with ice, and the older of the two was
asleep on a coil of rope with his cap over his eyes."""

SCIENCE = """Water is densest at about four degrees Celsius. As a lake cools in autumn, its surface water
sinks until the whole column has reached that temperature; from then on, colder water stays on
top, and ice forms there first. This is why fish survive the winter: the bottom of a deep lake
seldom falls below four degrees, whatever the air above it does. If water behaved like most
other liquids, lakes would freeze from the bottom up, and life in them would be very different.
The same property has a cost, however. Water that freezes in the crack of a rock expands by
about nine percent and pushes the crack open, so that mountains in cold climates are slowly
taken apart, winter after winter, one thin layer of ice at a time."""

PYTHON = '''def merge(intervals):
    """Return the union of intervals as a sorted list of disjoint ones."""
    out = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


assert merge([(1, 3), (2, 6), (8, 10)]) == [(1, 6), (8, 10)]
'''

C_CODE = """#include <stdio.h>
#include <stdlib.h>

struct node {
\tstruct node *next;
\tint value;
};

static struct node *reverse(struct node *head)
{
\tstruct node *prev = NULL;

\twhile (head != NULL) {
\t\tstruct node *next = head->next;
\t\thead->next = prev;
\t\tprev = head;
\t\thead = next;
\t}
\treturn prev;
}

int main(void)
{
\tstruct node nodes[10];

\tfor (int i = 0; i < 10; i++) {
\t\tnodes[i].value = i * i;
\t\tnodes[i].next = i < 9 ? &nodes[i + 1] : NULL;
\t}
\tfor (struct node *n = reverse(nodes); n != NULL; n = n->next)
\t\tprintf("%d\\n", n->value);
\treturn EXIT_SUCCESS;
}
"""

SQL = """SELECT c.name, COUNT(*) AS orders, SUM(o.total) AS revenue
FROM customers AS c
JOIN orders AS o ON o.customer_id = c.id
WHERE o.created_at >= '2024-01-01' AND o.status <> 'cancelled'
GROUP BY c.name
HAVING SUM(o.total) > 1000
ORDER BY revenue DESC
LIMIT 20;
"""

JSON = """{"id": 17, "event": "done", "usage": {"prompt_tokens": 812, "cached_tokens": 803,
"computed_tokens": 9}, "choices": [{"index": 0, "text": "Hello, world", "finish": "stop"},
{"index": 1, "text": "Good morning", "finish": "length"}], "tags": ["a", "b", "c"], "ok": true}
"""

CHINESE = """春天来了，公园里的花都开了。孩子们在草地上放风筝，老人们坐在长椅上聊天。
一位老师带着学生们参观博物馆，他们看到了很多古代的文物。回家以后，每个学生都写了一篇日记，
记录今天的所见所闻。计算机科学是一门研究信息与计算的学科，它包括算法、数据结构、操作系统、网络和人工智能等许多方向。"""

JAPANESE = """昨日は雨が降っていたので、家で本を読みました。その本は、海の近くの小さな町に住む
少年の物語です。今日は天気がいいから、友達と公園へ行くつもりです。東京から京都まで新幹線で二時間ぐらいかかります。"""

KOREAN = """오늘은 날씨가 아주 좋습니다. 친구와 함께 공원에서 점심을 먹고 사진을 찍었습니다.
저녁에는 가족과 함께 영화를 볼 예정입니다."""

GERMAN = """Der Zug nach Hamburg fährt heute von Gleis sieben ab und hat voraussichtlich zwanzig
Minuten Verspätung. Wir bitten alle Reisenden um Entschuldigung. Größere Gepäckstücke können
im Wagen hinter dem Speisewagen abgestellt werden."""

MIXED = """Café, naïve, Zürich, Øresund — “quotes” and ‘more’… 3 × 4 = 12, 50 % off! 🎉🚀 Привет, мир!
Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया. 你好，世界 / こんにちは世界 / 안녕하세요 세계.
\ttabs\tand    spaces\r\nCRLF lines\r\n\r\ne\u0301 combining, \u200bzero width, ﬁ ligature, ½, ∑∫√, A\u0300\u0323.
👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽 skin tone. https://example.org/a?b=c&d=%20#e <html><b>x</b></html>"""

NUMBERS = """Year,Population,Change
1950,2536274721,
1960,3034949748,19.66%
1970,3700437046,21.93%
1980,4458003514,20.47%
1990,5327231061,19.50%
2000,6143493823,15.32%
2010,6956823603,13.24%
2020,7794798739,12.05%
"""

MARKDOWN = """# Release notes

## 2.4.0 (unreleased)

- **Added** a `--dry-run` option that prints what would be done and changes nothing.
- **Fixed** a crash when the configuration file is empty ([#231](https://example.org/231)).
- **Changed** the default timeout from 10 s to 30 s; set `timeout = 10` to keep the old one.

| option | default | meaning |
| --- | --- | --- |
| `timeout` | 30 | seconds to wait for an answer |
| `retries` | 3 | how often to try again |

```sh
$ tool --dry-run --timeout 5 input.txt
would copy input.txt to output.txt
```
"""

CHAT_SHORT = chat("You are a helpful AI assistant named SmolLM, trained by Hugging Face",
                  "What is the capital of France?")

CHAT_LONG = chat(
    "You are a careful assistant. Answer in plain words and say so when you do not know.",
    "Why is the sky blue?",
    "Sunlight is a mixture of colours. Air scatters short waves much more than long ones, so blue "
    "light reaches our eyes from all over the sky, while red light mostly comes straight from the sun.",
    "And why is it red in the evening?",
    "In the evening the light travels a longer way through the air. Most of the blue has been "
    "scattered out of it before it reaches you, and what is left is orange and red.",
    "Write a short poem about that.",
    "The day lets go of blue at last,\nIts longest light is all that stays;\nThe west is red, the "
    "hour is past,\nAnd evening walks in amber haze.",
    "Thanks! Now give me three facts about Rayleigh scattering as a list.",
    "1. It happens when particles are much smaller than the wavelength of the light.\n2. Its strength "
    "grows with the fourth power of the frequency, so violet is scattered most of all.\n3. It is named "
    "after Lord Rayleigh, who described it in the nineteenth century.",
    "Is the sky on Mars blue as well?") + "<|im_start|>assistant\n"

CHAT_TOOLS = chat(
    "You can call functions. Available: get_weather(city: string), search(query: string, limit: "
    "integer). Answer with one JSON object that has the keys \"name\" and \"arguments\".",
    "Do I need an umbrella in Bergen today?",
    '{"name": "get_weather", "arguments": {"city": "Bergen"}}',
    '{"temperature": 9.5, "unit": "C", "condition": "rain", "wind": {"speed": 7, "from": "SW"}}',
    "Yes. It is raining in Bergen at 9.5 degrees with a fresh wind from the south-west, so a rain "
    "jacket may serve you better than an umbrella.",
    "Find me two shops that sell rain jackets.") + "<|im_start|>assistant\n"

TEXTS = [
    ("harbour", HARBOUR, 20),
    ("numbers", NUMBERS, 45),
    ("sql", SQL, 60),
    ("chat-short", CHAT_SHORT, 80),
    ("german", GERMAN, 80),
    ("korean", KOREAN, 100),
    ("json", JSON, 110),
    ("python", PYTHON, 130),
    ("japanese", JAPANESE, 150),
    ("science", SCIENCE, 180),
    ("chinese", CHINESE, 240),
    ("markdown", MARKDOWN, 240),
    ("c", C_CODE, 280),
    ("chat-tools", CHAT_TOOLS, 300),
    ("chat-long", CHAT_LONG, 380),
    ("mixed", MIXED, 400),
    ("heapq", inspect.getsource(heapq), 700),
    ("gpl", license_text("GPL-2"), 1000),
    ("textwrap", inspect.getsource(textwrap), 1200),
    ("classes", pydoc_data.topics.topics["specialnames"], 1500),
]


def english():
    """Plain English prose, enough of it for 30k tokens: Python's language reference."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[k] for k in sorted(topics) if k != "specialnames")
