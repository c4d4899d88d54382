"""Lines of source code in several languages, with places for names, numbers and text."""

from __future__ import annotations

LINES: dict[str, tuple[str, ...]] = {
    "python": (
        "def {a}({b}: int, {c}: str | None = None) -> dict[str, int]:\n    return {{{b!r}: {n}, **self.{c}}}\n",
        "    for {a}, {b} in enumerate(self._{c}):\n        if not {b}.is_ready() or {a} > {n}:\n            continue",
        'class {a}(Base):\n    """The {text}."""\n\n    {b}: list[str] = field(default_factory=list)\n',
        '        raise ValueError(f"no {{{a}}} in {text}") from error',
        '    with open({a}, encoding="utf-8") as {b}:\n        {c} = json.load({b})',
        '{A}: Final = {{\n    "{b}": {B},\n    "{c}": ({n}, None),\n}}',
        "import {a}\nfrom .{b} import {c}",
        "    # {text}\n    await asyncio.sleep({n} / 1000)",
        '    assert {a}({b}) == [{n}, None, "{text}"]',
    ),
    "javascript": (
        "export async function {a}({b}, {{ {c} = {n} }} = {{}}) {{\n  const response = await fetch(`/api/${{{b}}}`);\n}}",
        "  const {a} = {b}.map(({c}) => ({{ ...{c}, id: {n} }})).filter(Boolean);",
        "  if ({a} === undefined || {b}.length > {n}) {{\n    throw new Error('{text}');\n  }}",
        "import {{ {a}, {b} }} from './{c}.js';",
        '  return (\n    <div className="{a}">\n      <{b} value={{{c}}} onChange={{() => set({n})}} />\n    </div>\n  );',
        "  // {text}\n  this.{a}.on('{b}', (event) => this.{c}(event));",
        'export declare const {A}: {{ readonly {b}: "{a}"; readonly {c}: {n} }};',
        "    private readonly {a}: Map<string, Promise<{b} | undefined>>;",
        "'use strict';\nmodule.exports.{a} = function (e, t) {{ return t.{b}(e[{n}], !0), void 0 === t ? e : t }};",
        "interface {a} {{\n  {b}: string;\n  {c}?: number | null;\n}}",
    ),
    "c": (
        "static int {a}(const char *{b}, size_t {c})\n{{\n\tif ({b} == NULL || {c} > {n})\n\t\treturn -1;\n}}",
        "#include <{a}.h>\n#define {b} 0x{n:04x}",
        "\tfor (size_t i = 0; i < {a}->{b}; i++)\n\t\t{c}[i] = (uint8_t)({a}->data[i] & 0xff);",
        '\tprintf("%s: {text} %d\\n", {a}, {n}); /* {text} */',
        "struct {a} {{\n\tstruct {b} *next;\n\tunsigned long {c}[{n}];\n}};",
        "#ifndef {A}_H\n#define {A}_H\n#define {B}_MAX ({n}UL << 2)",
        "extern {a}_t *{b}_new(enum {a}_kind kind, void (*{c})(struct {a} *, int), uint32_t flags);",
        "/* {text} */\n#  define {A}(x, y) {B}_{A} ((x), (y))",
        "\tcase {A}: return {b} | {B}; break;",
        "\tmemcpy(&{a}, {b} + {n}, sizeof({c}));",
    ),
    "rust": (
        "pub fn {a}(&self, {b}: &str) -> Result<Vec<{c}>, Error> {{\n    self.inner.get({b}).ok_or(Error::Missing({n}))\n}}",
        "    let mut {a}: HashMap<String, u{n}> = HashMap::with_capacity({n});",
        '    match {a} {{\n        Some({b}) if {b} > {n} => {c}.push({b}),\n        None => return Err(anyhow!("{text}")),\n    }}',
        "#[derive(Debug, Clone, PartialEq)]\npub struct {a}<'a> {{\n    {b}: &'a [u8],\n    pub {c}: Option<usize>,\n}}",
        "    /// {text}\n    let {a} = {b}.iter().map(|x| x.{c}()).collect::<Vec<_>>();",
        "use crate::{a}::{{{b}, {c}}};",
    ),
    "go": (
        "func (s *{a}) {b}(ctx context.Context, {c} string) (*Response, error) {{\n\treturn nil, nil\n}}",
        '\tif err := s.{a}.{b}(ctx, {c}); err != nil {{\n\t\treturn fmt.Errorf("{text}: %w", err)\n\t}}',
        "\tfor _, {a} := range {b} {{\n\t\t{c} = append({c}, {a}[:{n}])\n\t}}",
        'type {a} struct {{\n\t{b} map[string]interface{{}} `json:"{b},omitempty"`\n}}',
        "\tgo func() {{ defer wg.Done(); {a} <- {b} }}() // {text}",
    ),
    "java": (
        "    @Override\n    public List<String> {a}(final Map<String, Object> {b}) throws IOException {{",
        '        if ({a} != null && !{a}.isEmpty()) {{\n            logger.info("{text} {{}}", {b}.get({n}));\n        }}',
        "    private static final int {A} = {n};",
        "        return {a}.stream().map({b}::new).collect(Collectors.toList());",
        "    /**\n     * The {text}.\n     */\n    private final {b} {c};",
    ),
    "sql": (
        "SELECT {a}, COUNT(*) AS {b} FROM {c} WHERE {a} > {n} GROUP BY {a} ORDER BY {b} DESC LIMIT {n};",
        "INSERT INTO {a} ({b}, {c}) VALUES ({n}, '{text}');",
        "CREATE TABLE IF NOT EXISTS {a} (\n    id BIGINT PRIMARY KEY,\n    {b} VARCHAR({n}) NOT NULL,\n    {c} TIMESTAMP\n);",
        "LEFT JOIN {a} ON {a}.{b} = {c}.id AND {c}.deleted_at IS NULL",
        "UPDATE {a} SET {b} = {b} + {n} WHERE {c} = '{text}';",
    ),
    "shell": (
        'for {a} in "${{{b}[@]}}"; do echo "$HOME/{c}/${{{a}}}.txt" >> /tmp/{b}.log; done',
        'if [ ! -d "${a}" ]; then mkdir -p "${a}" && cd "$_" || exit {n}; fi',
        "curl -sS -H 'Accept: application/json' http://localhost:{n}/{a} | jq -r '.{b}[].{c}'",
        'docker run --rm -v "$(pwd)":/work -e {a}={n} {b}:latest --{c}',
        '# {text}\nset -euo pipefail; export {a}="{b}"',
    ),
}
"""By language. The fields a, b and c are names, A and B constants, n is a number, and text a few words. Braces of
the language are doubled."""
