#!/usr/bin/env python3
"""Writes tests/vectors/chat.json: small templates and what jinja2 makes of them.

usage: make_chat_vectors.py > tests/vectors/chat.json     (needs jinja2)

Each vector is [template, text], or [template, null] where jinja2 raises. The variables are
those of the first element. Templates that differ from jinja2 on purpose are not here.
"""
import json
import sys

from compare_chat import reference

VARIABLES = {
    "messages": [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": None}],
    "kwargs": {
        "n": 7, "neg": -3, "f": 2.5, "big": 1e22, "tiny": 1e-7, "yes": True, "no": False,
        "s": "Hello, Wörld", "e": "", "ws": "  \t a b  c \n", "u": "straße İX ΣΑΣ ﬁ ŉ",
        "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"x": [1, None, True]}},
        "dl": [{"k": "x", "v": 2}, {"k": "Y", "v": 1}, {"v": 3}], "lines": "one\ntwo\r\nthree\n",
        "q": "it's \"q\" \\ \n\t\x7f\u00a0\u200b😀", "nested": [[1, [2]], {"z": []}],
    },
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
-7 // 2
-7 % 3
7 % -3
7.5 // 2
7.5 % -2
2 ** 3 ** 2
2 ** -1
-2 ** 2
1 / 4
6 / 3
1 // 0
1 % 0
1.0 / 0
1e300 * 1e10
0.1 + 0.2
1e16
123456789.0
1e15 + 0.5
5e-324
1.5e-5
big
tiny
f
-f
+n
0x1f + 0b101 + 0o17
1_000
10 % 3 ~ 'x' ~ 2.0
'a' 'b' "c"
'a' ~ none ~ true ~ 1.0 ~ missing
'a' + 1
1 + 'a'
missing + 1
[1] + [2, 3]
(1,) + (2,)
'ab' * 3
[0] * 3
3 * 'x'
'x' * -1
none
true and 'x'
0 or 'y'
[] or {} or 'z'
not 0
not missing
1 if yes
1 if no
1 if no else 2 if no else 3
'a' if missing is defined else 'b'
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
1 == 1.0 == true
'a' < 'b'
'Z' < 'a'
'a' < 1
[1, 2] < [1, 3]
[1] == (1,)
{'a': 1} == {'a': 1.0}
none == missing
missing == other
missing < 1
1 in [1, 2]
true in [1]
'ell' in s
'a' in d
'x' not in d
1 in 'abc'
1 in none
5 in range(10)
n is defined, missing is defined, missing is undefined
none is none, n is none, missing is none
s is string, n is string, n is number, f is number, yes is number
n is integer, yes is integer, f is float, n is float
d is mapping, l is mapping, l is sequence, s is sequence, d is sequence, n is sequence
l is iterable, s is iterable, n is iterable, missing is iterable, missing is sequence
yes is boolean, yes is true, no is false, n is true, 1 is true
n is odd, n is even, n is divisibleby(7), n is divisibleby 2
n is eq 7, n is ne 7, n is lt 8, n is ge 7, n is gt(6), n is le 6
n is in [7], 'b' is in d, n is not in [7]
n is sameas n, none is sameas none, 1 is sameas true
range is callable, s is callable, s.upper is callable
'abc' is lower, 'ABC' is upper, 'aBC' is upper
s is not string
n is equalto(7) and n is not none
l[0], l[-1], l[5], l['x']
l[1:], l[:-1], l[::-1], l[::2], l[5:], l[-2:], l[2:0:-1]
s[0], s[-1], s[7:9], s[::-1], s[100], s[-5:-1]
s[1:6:2]
u[::-1]
s[missing:]
missing[1:]
d[1:]
n[0]
(1, 2, 3)[1:]
range(10)[2:8:3]
range(5)[-1]
range(3)
range(1, 10, 3)|list
range(5, 0, -2)|list
range(0)|list
range(200000)
range(1, 2, 0)
d.b, d['b'], d.a.x, d['a']['x'][0], d.zzz
d.zzz.y
d.items()
d.keys()|list
d.values()|list
d.get('b'), d.get('q'), d.get('q', 5)
missing.x
missing['x']
none.x
n.x
s.x
{'items': 1}.items() | list
{'items': 1}['items']
{'a': 1, 'a': 2, 1: 'x', 1.0: 'y', true: 'z', none: 0, (1, 2): 3}
{[1]: 2}
(), (1,), (1, 2)
[1, 'a', none, true, 1.5, [], {}, (), 'it\'s', "q\"q", 'b\'"b']
[missing]
[q]
d
nested
dl
(1, 2).0
dl.0.k
dl[0].k
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase()
u.upper()
u.lower()
u.title()
u.capitalize()
u|title
'hello wORLD-foo (bar) [baz]'|title
"they're bill's".title()
ws.strip() ~ '|' ~ ws.lstrip() ~ '|' ~ ws.rstrip() ~ '|'
'xxhixx'.strip('x'), 'xyhiyx'.strip('yx'), 'xxhi'.lstrip('x'), 'hixx'.rstrip('x')
'äöü'.strip('äü')
ws.split(), ws.split(' '), 'a,b,c'.split(','), 'a,b,c'.split(',', 1), ''.split(), ''.split(',')
' a  b '.split(none, 1), 'a b c'.rsplit(' ', 1), ' a b c '.rsplit(none, 1), 'aXbXc'.rsplit('X')
'aaa'.split('aa'), 'aaa'.rsplit('aa')
'x'.split('')
lines.splitlines(), lines.splitlines(true)
'-'.join(['a', 'b']), ''.join([]), ','.join('abc'), '-'.join([1])
s.startswith('Hell'), s.endswith('rld'), s.startswith(('x', 'H')), s.startswith('ello', 1), s.endswith('')
s.replace('l', 'L'), s.replace('l', 'L', 1), s.replace('', '-'), s.replace('l', ''), 'aaa'.replace('', 'b', 2)
s.find('W'), s.find('z'), s.find('l', 4), s.rfind('l'), s.index('l'), s.count('l'), s.find(''), s.count('')
s.index('zz')
s.find('r', 0, 5)
'abc'.isalpha(), '12'.isdigit(), 'a1'.isalnum(), ' '.isspace(), 'AB'.isupper(), 'ab1'.islower(), ''.isalpha()
'a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'abc'.partition('='), 'abc'.rpartition('=')
'ab'.center(7, '*'), 'ab'.center(6), 'abc'.center(6, '.'), 'ab'.ljust(4, '.'), 'ab'.rjust(5), 'abc'.center(2)
'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), 'x'.removeprefix('y')
l.index(1), l.count(2), ls.index('c')
l.index(9)
(3, 1).index(1)
'{} {}'.format(1, 'a'), '{1}{0}'.format('a', 'b'), '{x}-{x!r}'.format(x='q'), '{{}}'.format()
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:5}|{:05d}|{:+}|{:,}|{:x}|{:#x}|{:b}|{:o}|{:X}'.format(42, 42, 42, 1234567, 255, 255, 5, 8, 255)
'{:.2f}|{:8.3f}|{:e}|{:g}|{:.0f}|{:%}|{:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 2.5, 0.25, 0.5)
'{0[k]} {0.k} {1[0]}'.format({'k': 1}, [2])
'{:.2}'.format('abcdef')
'{}'.format()
'{:d}'.format('x')
'%s %d %r' % ('a', 5, 'b'), '%s' % 'x', '%5d|%-5d|%05d' % (42, 42, 42), '%%'  % ()
'%x %X %o %#x' % (255, 255, 8, 255), '%.2f %e %g' % (1.005, 12345.678, 1e-5), '%c' % 'x'
'%(a)s-%(b)03d' % {'a': 1, 'b': 2}
'%s %s' % 'x'
'%s' % ('a', 'b')
'%d' % 'x'
'%s' % none, '%s' % missing, '%5.1f|%+d|% d' % (2.25, 3, 4), '%-8s|%8s|%.2s' % ('ab', 'cd', 'efg')
'%s' % [1, 2]
l|length, s|length, d|length, u|count, ''|length
n|length
missing|length
s|upper, s|lower, s|capitalize, 'hello world'|title
5|upper
ws|trim, 'xxaxx'|trim('x')
5|string, none|string, d|string
s|replace('l', 'L'), s|replace('l', 'L', 2), 5|replace(5, 6)
missing|default('x'), none|default('x'), e|default('x'), e|default('x', true), missing|d, n|default(boolean=true, default_value=3)
ls|join, ls|join(', '), l|join('-'), dl|join(',', attribute='k'), 'abc'|join('.'), d|join
l|sort, ls|sort, ls|sort(case_sensitive=true), l|sort(reverse=true), dl|sort(attribute='v')|join(',', 'v')
[1, 'a']|sort
dl|sort(attribute='k')
[{'a': 1, 'b': 2}, {'a': 1, 'b': 1}, {'a': 0, 'b': 9}]|sort(attribute='a,b')
d|dictsort, {'B': 1, 'a': 3, 'C': 2}|dictsort, {'B': 1, 'a': 3}|dictsort(true), {'x': 2, 'y': 1}|dictsort(by='value'), {'B': 1, 'a': 3}|dictsort(reverse=true)
l|min, l|max, ls|min, ls|max, []|max, dl|min(attribute='v'), ls|max(case_sensitive=true)
l|sum, [1.5, 2]|sum, dl|sum(attribute='v'), [[1], [2]]|sum(start=[]), []|sum
l|first, l|last, s|first, s|last, []|first, d|first
l|reverse|list, s|reverse, d|reverse|list
[1, 2, 1, 3, 2]|unique|list, ['a', 'A', 'b']|unique|join, ['a', 'A']|unique(true)|list
ls|map('upper')|list, dl|map(attribute='k')|list, dl|map(attribute='k', default='?')|join, l|map('string')|join(' '), dl|map(attribute='a.b')|list
ls|map('replace', 'a', 'z')|list
[0, 1, 2, none]|select|list, [0, 1]|reject|list, l|select('odd')|list, l|reject('gt', 1)|list
dl|selectattr('k')|list, dl|selectattr('v', 'gt', 1)|list, dl|selectattr('k', 'defined')|map(attribute='v')|list, dl|rejectattr('k', 'equalto', 'x')|list
none|select|list
l|map('nofilter')|list
l|select('notest')|list
d|items|list, missing|items|list
n|items|list
s|list, d|list, (1, 2)|list
n|list
'5'|int, ' 12 '|int, 'x'|int, 'x'|int(3), '1.9'|int, 3.9|int, -3.9|int, '0x1f'|int(base=16), true|int, none|int, '1_0'|int, '-7'|int, ''|int, '1e3'|int
'1.5'|float, 'x'|float, 3|float, 'inf'|float, ' 2 '|float, none|float(1.5), '1e3'|float
-5|abs, (-5)|abs, (-2.5)|abs
2.5|round, 3.5|round, 2.675|round(2), 2.1|round(method='ceil'), 2.9|round(0, 'floor'), 7|round, 1234.5|round(-2), 1.25|round(1)
lines|indent, lines|indent(2, true), lines|indent('> '), 'a\n\nb'|indent(2, blank=true), 'a\n\nb'|indent(2), ''|indent(2, true)
'<a href="x">&\'</a>'|e, '<'|escape|escape, '<'|safe|e, '<'|e|forceescape
('<'|safe) + '<', '<' + ('<'|safe), ('<'|safe) ~ '<', ('a'|safe)|upper, [('a'|safe)]
'x'|safe is escaped, 'x' is escaped
'%s-%s'|format(1, 2), '%(a)s'|format(a=1)
[1, 2, 3, 4, 5]|batch(2)|list, [1, 2, 3]|batch(2, 'x')|list, [1, 2, 3, 4, 5]|slice(2)|list, [1, 2, 3]|slice(2, 'x')|list
'upper' is filter, 'nope' is filter, 'odd' is test
d|tojson, l|tojson, s|tojson, q|tojson, none|tojson, true|tojson, f|tojson, big|tojson, n|tojson
d|tojson(indent=2)
nested|tojson(indent=4)
{}|tojson(indent=2), []|tojson(indent=2)
d|tojson(indent='\t')
s|tojson(ensure_ascii=true), q|tojson(true)
d|tojson(separators=(',', ':')), d|tojson(sort_keys=true), d|tojson(indent=1, separators=(', ', ' = '))
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
missing|tojson
[missing]|tojson
range(3)|tojson
(1, 2)|tojson
dl|map(attribute='v')|tojson
d.items()|tojson
'{"a": [1, 2.5, null, true, "x"]}'|from_json
('[1, 2]'|from_json)[0] + 1
'{'|from_json
namespace(a=1).a, namespace(a=1).b, namespace({'x': 2}).x
namespace(a=1)
dict(a=1, b=2), dict([('x', 1)]), dict({'y': 2}, z=3)
strftime_now('%Y-%m-%d %H:%M:%S'), strftime_now('%d %b %Y'), strftime_now('%A %B %j %%'), strftime_now('%z|%Z|')
raise_exception('words')
raise_exception('a' ~ 5)
nofunction()
none()
s()
messages[0].role ~ messages[-1]['content']
messages|length, messages[1].content is none, messages[0].content|trim
tools is none, documents is none, add_generation_prompt, bos_token, eos_token
'\n\t\\\'\"\x41\u00e9\U0001F600\101\q' ~ 'end'
"a
b"
-1|abs
- 1 - -1
1 - 1 ~ 2
'a' ~ 'b' * 2
'a' in 'ab' ~ 'c'
not 1 == 2
not 'a' in 'b'
1 is number and not 2 is string
(1 if yes else 2) + 3
[1, 2, 3][1]
{'a': {'b': [10, 20]}}.a.b[1]
'a,b'.split(',')[0].upper()
s|upper|lower|length
l|map('int')|sum + 1
x if x is defined else 'none'
'abc'[1:] + 'abc'[:1]
('a', 'b')|join('/')
[1, 2,]|length
{'a': 1,}|length
1.5.x
[l|length, d|length]|max
9223372036854775807
-9223372036854775807 - 1
'é' == 'e\u0301'
'日本語テキスト'[2:4], '日本語'|length, '日本語'.find('語'), '日本語'|reverse, '日本語'.replace('本', '-')
'😀😁'[1], '😀' * 2, '😀😁'|list
'ÀÉ'.lower(), 'àé'.upper(), 'ǆ'.title(), 'ΌΣΟΣ'.lower(), 'ŉ'.upper(), 'ﬃ'.upper(), 'ﬃ'.title(), 'ᾳ'.upper(), 'ᾳ'.title()
"""

TEMPLATES = [
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}",
    "{% if no %}a{% endif %}b",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.index }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in 'añb' %}[{{ c }}]{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}{{ loop.last }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in [(1,)] %}{{ a }}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in none %}a{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }}{% endfor %}={{ y }}",
    "{% set ns = namespace(t=0) %}{% for x in l %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}",
    "{% set ns = namespace(hit=false) %}{% for x in l if not ns.hit %}{{ x }}{% set ns.hit = true %}{% endfor %}",
    "{% set ns = namespace(hit=false) %}{% for x in l if not ns.hit %}{{ x }}{{ loop.last }}{% set ns.hit = true %}{% endfor %}",
    "{% set d.b = 5 %}", "{% set nope.b = 5 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}",
    "{% if yes %}{% set z = 1 %}{% endif %}{{ z }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x|length }}",
    "{% set x | upper | replace('A', 'z') %}ab{% endset %}{{ x }}",
    "{% set x %}{% set y = 5 %}{% endset %}[{{ y }}]",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(c=0, a=9) }} {{ f() }}",
    "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(1) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f() %}{{ g }}{% endmacro %}{% set g = 3 %}{{ f() }}",
    "{% macro f() %}{% set g = 4 %}{{ g }}{% endmacro %}{% set g = 3 %}{{ f() }}{{ g }}",
    "{% macro f(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% call f(1) %}in{{ n }}{% endcall %}",
    "{% macro f() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) f() %}{{ a }}-{{ b }}{% endcall %}",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}",
    "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'x': 2}) }}{{ f.name }}",
    "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aaa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set q1 = 1 %}{{ q1 }}{% endwith %}{{ q1 }}",
    "{% generation %}x{{ n }}{% set g = 1 %}{% endgeneration %}{{ g }}",
    "{% print n, s %}", "{# comment #}a{#- x -#} b", "a\n{# c #}\nb", "a {#- c #} b",
    "{% raw %}{{ x }}{% if %}{% endraw %}y", "a {%- raw -%} b {%- endraw -%} c", "{% raw -%}  x  {%- endraw %}",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\nc\n",
    "a\n  {%+ if yes +%}\n  b\n  {%+ endif +%}\nc\n", "  {{ n }}  \n  {{- n -}}  \n x", "{% if yes -%}\n\n  a{% endif %}",
    "x {% if yes %} y {% endif %} z\n\n", "x\n\n", "x\r\ny\rz\n", "\n{% if yes %}\n\n{% endif %}\n", "  {# c #}\nx",
    "{{ '{{' }}{{ '}}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}} }}", "{{ [{'x': [1]}][0]['x'][0] }}",
    "{{- n }} {{ n -}}  x", "{{+ n }}", "a{{ n}}b{{n }}c", "{ { % } }", "{", "a{", "{{", "{% if", "{{ n", "}}",
    "{% for x in l %}", "{% endif %}", "{% unknown %}", "{{ 1 + }}", "{{ ) }}", "{{ (1 }}", "{{ 'abc }}", "{{ n n }}",
    "{% set %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% for 1 in l %}{% endfor %}", "{% break %}",
    "{# open", "{% raw %} open", "{{ n | }}", "{{ n is }}", "{{ n ! n }}", "{{ n $ }}", "{{ '\\x4' }}",
    "{% macro f(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ n is number is string }}", "{% call n %}{% endcall %}",
    "{{ l.append(9) }}{{ l }}", "{% set _ = l.pop(0) %}{{ l }}{{ l.pop() }}{{ l }}", "{% set x = [1] %}{% set y = x.extend([2, 3]) %}{{ x }}{{ y }}",
    "{% set x = {'a': 1} %}{% set _ = x.update({'b': 2}, c=3) %}{{ x }}{{ x.pop('a') }}{{ x }}{{ x.pop('zz', 0) }}{{ x.setdefault('k', 4) }}",
    "{% set x = [3, 1, 2] %}{{ x.sort() }}{{ x }}{{ x.reverse() }}{{ x }}{{ x.insert(1, 'i') }}{{ x }}{{ x.remove(3) }}{{ x }}{{ x.copy() }}{{ x.clear() }}{{ x }}",
    "{{ [].pop() }}", "{{ {}.pop('x') }}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}",
    "{% set g = l|select %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}.",
    "{% set v = d.items() %}{{ v|length }}{% for k in v %}{{ k[0] }}{% endfor %}{% for k in v %}{{ k[0] }}{% endfor %}",
    "{{ l|map('string')|length }}", "{{ (l|select)|first }}", "{{ 2 in (l|select) }}",
    "{% for item in nested recursive %}{% if item is iterable and item is not string %}({{ loop(item) }}){% else %}{{ item }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% if x is defined and x %}a{% endif %}{% if x %}b{% endif %}c", "{{ missing }}|{{ missing.y is defined }}",
    "{% set loop = 3 %}{% for x in [1] %}{{ loop.index }}{% endfor %}{{ loop }}",
    "{% for x in [1, 2] %}{% for y in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m.content %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('System first, please: ' ~ messages[0].role) }}{% endif %}",
    "{% macro esc(x) -%}{{ x|replace('<', '&lt;') }}{%- endmacro -%}{{ esc(messages[0].content) }}",
    "{% set a = s ~ 'x' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }}{{ b }}{{ c }}{{ b ~ b }}{{ a ~ a ~ b }}{{ c + a }}",
    "{% set ns = namespace(t='') %}{% for i in range(40) %}{% set old = ns.t %}{% set ns.t = ns.t ~ i ~ 'é' %}{{ old|length }}{% endfor %}{{ ns.t }}",
    "{% set ns = namespace(t='a') %}{% macro f() %}{% set ns.t = ns.t ~ 'f' %}r{% endmacro %}{% set ns.t = ns.t ~ 'b' %}{% set ns.t = ns.t ~ f() ~ 'c' %}{{ ns.t }}",
    "{% set tool = {'type': 'function', 'function': {'name': 'f', 'parameters': d}} %}{{ tool | tojson(indent=4) }}",
]


def main():
    templates = ["{{ %s }}" % e.strip() for e in EXPRESSIONS.split("\n") if e.strip()]
    templates[templates.index('{{ "a }}')] = '{{ "a\nb" }}'
    templates.remove('{{ b" }}')
    vectors = [VARIABLES]
    for template in templates + TEMPLATES:
        want = reference({"template": template, "add_generation_prompt": True,
                          "bos_token": "<s>", "eos_token": "</s>", **VARIABLES})
        vectors.append([template, None if isinstance(want, Exception) else want])
        if isinstance(want, Exception):
            print(f"{template!r}: {type(want).__name__}: {want}", file=sys.stderr)
    print("[" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in vectors) + "]")


if __name__ == "__main__":
    main()
