//! Tests that every constant SQL statement can be prepared against the migrated schema.
//!
//! The test reads the sources of the crates that contain SQL, and finds each call of `sqlx::query`,
//! `query_as` and `query_scalar`. It evaluates the statement from literals, constants and `concat!`
//! macros. Postgres then checks its syntax, tables, columns and types. The number of parameters
//! must be the number of `.bind` calls, and a scalar has one column.
//!
//! `sqlx::query!` would check the Rust types as well. It would also compile the macros of sqlx,
//! require a file for each statement, and need a database for each change. Statements built with
//! `concat!` could not use it.
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use sqlx::{Either, Executor};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{
    Block, Expr, ExprCall, ExprForLoop, ExprMethodCall, FnArg, ImplItemFn, Item, ItemFn, ItemMacro, Lit,
    Local, Pat, Signature, Stmt, Type,
};
use testing::TestDatabase;

/// Crates that contain SQL (`scripts/check-boundaries`).
const CRATES: [&str; 2] = ["queue", "store"];
/// Minimum number of statements. If there are fewer, the search no longer finds all statements.
const MIN_STATEMENTS: usize = 300;

#[testing::test]
async fn every_constant_sql_statement_matches_schema() {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let found: Vec<FoundStatements> =
        CRATES.iter().map(|name| find_statements(&backend.join(name).join("src"))).collect();
    let unknown: Vec<&String> = found.iter().flat_map(|found| &found.unknown).collect();
    assert!(unknown.is_empty(), "neither constant nor marked as built at run time: {unknown:#?}");
    let statements: Vec<&Statement> = found.iter().flat_map(|found| &found.statements).collect();
    assert!(statements.len() >= MIN_STATEMENTS, "only {} statements were found", statements.len());

    let database = TestDatabase::create().await;
    let mut errors = Vec::new();
    for statement in &statements {
        if let Some(reason) = check(&database, statement).await {
            errors.push(format!("{}: {reason}\n{}", statement.location, statement.sql));
        }
    }
    println!("{} statements were prepared", statements.len());
    assert!(errors.is_empty(), "{} statements do not fit the schema:\n{}", errors.len(), errors.join("\n\n"));
}

async fn check(database: &TestDatabase, statement: &Statement) -> Option<String> {
    let mut conn = database.pool().acquire().await.unwrap();
    let sql = sqlx::AssertSqlSafe(statement.sql.clone());
    let described = match (&mut *conn).describe(sqlx::SqlSafeStr::into_sql_str(sql)).await {
        Ok(described) => described,
        Err(error) => return Some(error.to_string()),
    };
    let parameters = match described.parameters() {
        Some(Either::Left(types)) => types.len(),
        Some(Either::Right(count)) => count,
        None => 0,
    };
    if statement.binds.is_some_and(|binds| binds != parameters) {
        return Some(format!("{parameters} parameters, {:?} bound", statement.binds));
    }
    let columns = described.columns().len();
    let is_match = match statement.function.as_str() {
        "query_scalar" => columns == 1,
        "query_as" => columns > 0,
        _ => true,
    };
    (!is_match).then(|| format!("{columns} columns in a {}", statement.function))
}

/// A comment with these words is required at most eight lines above a statement that is not
/// constant.
const BUILT_AT_RUN_TIME: &str = "run time";
const MAX_COMMENT_DISTANCE: usize = 8;

/// A statement as it is sent to Postgres.
struct Statement {
    /// File and line.
    location: String,
    sql: String,
    /// `query`, `query_as` or `query_scalar`.
    function: String,
    /// Number of calls of `.bind`; `None` if the query is passed to another function before it
    /// runs.
    binds: Option<usize>,
}

#[derive(Default)]
struct FoundStatements {
    statements: Vec<Statement>,
    /// Places of queries that could not be evaluated.
    unknown: Vec<String>,
}

/// The definitions of names in expressions.
#[derive(Default)]
struct Names {
    /// The file that is currently read.
    file: String,
    /// Constants by file and name. Constants of all files are also stored with an empty file.
    constants: HashMap<(String, String), Expr>,
    macros: HashMap<String, Vec<Arm>>,
}

/// One arm of a `macro_rules!` macro. It consists of the name of each argument with the tokens
/// before it, and of the body.
struct Arm {
    arguments: Vec<(Vec<String>, String)>,
    body: TokenStream,
}

struct Search<'a> {
    names: &'a Names,
    file: String,
    lines: Vec<String>,
    locals: HashMap<String, Expr>,
    /// Arguments of the function that are static strings, because its callers pass constants.
    arguments: HashSet<String>,
    found: &'a mut FoundStatements,
}

fn find_statements(folder: &Path) -> FoundStatements {
    let files: Vec<(String, String)> = testing::files_below(folder)
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| (file.display().to_string(), std::fs::read_to_string(&file).unwrap()))
        .collect();
    let parsed: Vec<syn::File> = files.iter().map(|(_, text)| syn::parse_file(text).unwrap()).collect();
    let mut names = Names::default();
    for ((file, _), parsed) in files.iter().zip(&parsed) {
        names.file.clone_from(file);
        names.visit_file(parsed);
    }
    let mut found = FoundStatements::default();
    for ((file, text), parsed) in files.iter().zip(&parsed) {
        names.file.clone_from(file);
        let lines = text.lines().map(str::to_owned).collect();
        let (locals, arguments) = Default::default();
        let file = file.clone();
        Search { names: &names, file, lines, locals, arguments, found: &mut found }.visit_file(parsed);
        found.statements.extend(names.statements());
    }
    found
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(item) => {
                for file in [self.file.clone(), String::new()] {
                    self.constants.insert((file, item.ident.to_string()), (*item.expr).clone());
                }
            }
            Item::Macro(ItemMacro { ident: Some(name), mac, .. }) => {
                self.macros.insert(name.to_string(), parse_arms(&mac.tokens));
            }
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.arguments = static_arguments(&function.sig);
        self.locals.clear();
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.arguments = static_arguments(&function.sig);
        self.locals.clear();
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_expr_for_loop(&mut self, for_loop: &'ast ExprForLoop) {
        let items = match &*for_loop.expr {
            Expr::Path(path) => self.names.constant(&last_name(&path.path)).unwrap_or(&for_loop.expr),
            items => items,
        };
        match &*for_loop.pat {
            Pat::Ident(name) => _ = self.locals.insert(name.ident.to_string(), items.clone()),
            Pat::Tuple(names) => {
                for (index, name) in names.elems.iter().enumerate() {
                    if let (Pat::Ident(name), Some(column)) = (name, tuple_column(items, index)) {
                        self.locals.insert(name.ident.to_string(), column);
                    }
                }
            }
            _ => {}
        }
        syn::visit::visit_expr_for_loop(self, for_loop);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        // The initialiser is visited first, because the name may have a different value in it.
        syn::visit::visit_local(self, local);
        if let (Pat::Ident(name), Some(value)) = (&local.pat, &local.init) {
            self.locals.insert(name.ident.to_string(), (*value.expr).clone());
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let (mut binds, mut is_executed) = (0, false);
        let mut current = call;
        loop {
            match current.method.to_string().as_str() {
                "bind" => binds += 1,
                name => is_executed |= name.starts_with("fetch") || name == "execute",
            }
            call.args.iter().for_each(|argument| self.visit_expr(argument));
            match &*current.receiver {
                Expr::MethodCall(inner) => current = inner,
                Expr::Call(query) if sqlx_function(query).is_some() => {
                    return self.record(query, is_executed.then_some(binds));
                }
                _ => return syn::visit::visit_expr_method_call(self, call),
            }
        }
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if sqlx_function(call).is_some() {
            self.record(call, None);
        }
        syn::visit::visit_expr_call(self, call);
    }
}

impl Search<'_> {
    fn record(&mut self, call: &ExprCall, binds: Option<usize>) {
        let line = call.span().start().line;
        let location = format!("{}:{line}", self.file);
        let statements = self.names.evaluate(&call.args[0], &self.locals);
        let is_argument =
            matches!(&call.args[0], Expr::Path(path) if self.arguments.contains(&last_name(&path.path)));
        if statements.is_empty() && is_argument {
            return;
        }
        if statements.is_empty() {
            let preceding_lines = &self.lines[line.saturating_sub(MAX_COMMENT_DISTANCE)..line];
            if !preceding_lines.iter().any(|line| line.contains("//") && line.contains(BUILT_AT_RUN_TIME)) {
                self.found.unknown.push(location);
            }
            return;
        }
        let function = sqlx_function(call).unwrap();
        for sql in statements {
            self.found.statements.push(Statement {
                location: location.clone(),
                sql,
                function: function.clone(),
                binds,
            });
        }
    }
}

/// Returns the name of the sqlx function that is called. Statements built with a `QueryBuilder` are
/// not constant and are ignored.
fn sqlx_function(call: &ExprCall) -> Option<String> {
    let Expr::Path(path) = &*call.func else { return None };
    let names: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["sqlx", name] if name.starts_with("query") => Some(name.to_owned()),
        _ => None,
    }
}

fn last_name(path: &syn::Path) -> String {
    path.segments.last().unwrap().ident.to_string()
}

/// Returns one column of an array of tuples, as an array.
fn tuple_column(items: &Expr, index: usize) -> Option<Expr> {
    let Expr::Array(array) = items else { return None };
    let mut column = array.clone();
    for item in &mut column.elems {
        let Expr::Tuple(tuple) = &*item else { return None };
        *item = tuple.elems.get(index)?.clone();
    }
    Some(Expr::Array(column))
}

/// Returns the names of the arguments of type `&'static str`.
fn static_arguments(signature: &Signature) -> HashSet<String> {
    let arguments = signature.inputs.iter().filter_map(|argument| match argument {
        FnArg::Typed(argument) => Some((&*argument.pat, &*argument.ty)),
        FnArg::Receiver(_) => None,
    });
    let names = arguments.filter_map(|(name, kind)| match (name, kind) {
        (Pat::Ident(name), Type::Reference(kind)) => {
            let is_static = kind.lifetime.as_ref().is_some_and(|lifetime| lifetime.ident == "static");
            is_static.then(|| name.ident.to_string())
        }
        _ => None,
    });
    names.collect()
}

fn is_statement(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    matches!(first, "select" | "insert" | "update" | "delete" | "with")
}

impl Names {
    /// Returns the constants of the file that are whole statements. Some are passed as arguments,
    /// so no call of sqlx names them.
    fn statements(&self) -> Vec<Statement> {
        let constants_of_file = self.constants.iter().filter(|((file, _), _)| *file == self.file);
        let mut found = Vec::new();
        for ((file, name), value) in constants_of_file {
            let texts = self.evaluate(value, &HashMap::new());
            found.extend(texts.into_iter().filter(|text| is_statement(text)).map(|sql| Statement {
                location: format!("{file}: {name}"),
                sql,
                function: "const".into(),
                binds: None,
            }));
        }
        found
    }

    fn constant(&self, name: &str) -> Option<&Expr> {
        let constants_of_file = self.constants.get(&(self.file.clone(), name.to_owned()));
        constants_of_file.or_else(|| self.constants.get(&(String::new(), name.to_owned())))
    }

    /// Returns the strings to which an expression can evaluate, or none if they are known only at
    /// run time.
    fn evaluate(&self, expr: &Expr, locals: &HashMap<String, Expr>) -> Vec<String> {
        let evaluate_all = |parts: Vec<&Expr>| {
            let texts: Vec<Vec<String>> = parts.iter().map(|part| self.evaluate(part, locals)).collect();
            if texts.iter().any(Vec::is_empty) { Vec::new() } else { texts.concat() }
        };
        match expr {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => vec![text.value()],
                Lit::Int(number) => vec![number.base10_digits().to_owned()],
                _ => Vec::new(),
            },
            Expr::Path(path) => {
                let name = path.path.segments.last().unwrap().ident.to_string();
                match locals.get(&name).or_else(|| self.constant(&name)) {
                    Some(value) => self.evaluate(value, &HashMap::new()),
                    None => Vec::new(),
                }
            }
            Expr::If(choice) => {
                let other = choice.else_branch.as_ref().map(|(_, other)| &**other);
                evaluate_all([tail_expression(&choice.then_branch), other].into_iter().flatten().collect())
            }
            Expr::Match(choice) => evaluate_all(choice.arms.iter().map(|arm| &*arm.body).collect()),
            Expr::Block(block) => {
                tail_expression(&block.block).map_or(Vec::new(), |tail| self.evaluate(tail, locals))
            }
            Expr::Macro(call) => self.expand(&call.mac, locals),
            Expr::Array(array) => evaluate_all(array.elems.iter().collect()),
            Expr::Index(index) => self.evaluate(&index.expr, locals),
            Expr::Reference(reference) => self.evaluate(&reference.expr, locals),
            Expr::Paren(inner) => self.evaluate(&inner.expr, locals),
            _ => Vec::new(),
        }
    }

    fn expand(&self, call: &syn::Macro, locals: &HashMap<String, Expr>) -> Vec<String> {
        let name = call.path.segments.last().unwrap().ident.to_string();
        let arguments = split_at_commas(call.tokens.clone());
        if name == "concat" {
            let parts =
                arguments.into_iter().map(|part| match syn::parse2::<Expr>(part.into_iter().collect()) {
                    Ok(part) => self.evaluate(&part, locals).concat(),
                    Err(_) => String::new(),
                });
            return vec![parts.collect()];
        }
        let arms = self.macros.get(&name).map_or(&[][..], Vec::as_slice);
        let body = arms.iter().find_map(|arm| Some(substitute(arm.body.clone(), &arm.bind(&arguments)?)));
        let Some(Ok(body)) = body.map(syn::parse2::<Expr>) else { return Vec::new() };
        self.evaluate(&body, locals)
    }
}

/// Returns the expression at the end of a block.
fn tail_expression(block: &Block) -> Option<&Expr> {
    match block.stmts.last()? {
        Stmt::Expr(tail, None) => Some(tail),
        _ => None,
    }
}

impl Arm {
    /// Returns the tokens of each argument by name, or `None` if the arguments do not match.
    fn bind(&self, arguments: &[Vec<TokenTree>]) -> Option<HashMap<String, TokenStream>> {
        if arguments.len() != self.arguments.len() {
            return None;
        }
        let mut values = HashMap::new();
        for ((words, name), tokens) in self.arguments.iter().zip(arguments) {
            let is_match = tokens.len() > words.len()
                && words.iter().zip(tokens).all(|(word, token)| *word == token.to_string())
                && (words.len() + 1 == tokens.len()
                    || !matches!(tokens[0], TokenTree::Ident(_))
                    || is_macro_call(tokens));
            if !is_match {
                return None;
            }
            values.insert(name.clone(), tokens[words.len()..].iter().cloned().collect());
        }
        Some(values)
    }
}

/// Returns whether the tokens are a macro's name, `!` and its arguments.
fn is_macro_call(tokens: &[TokenTree]) -> bool {
    matches!(tokens.get(1), Some(TokenTree::Punct(mark)) if mark.as_char() == '!')
}

/// Reads the arms of a macro. Arms with repetitions are ignored.
fn parse_arms(tokens: &TokenStream) -> Vec<Arm> {
    let groups: Vec<_> = tokens
        .clone()
        .into_iter()
        .filter_map(|token| if let TokenTree::Group(group) = token { Some(group) } else { None })
        .collect();
    let arm = |pair: &[proc_macro2::Group]| {
        let [pattern, body] = pair else { return None };
        let arguments = split_at_commas(pattern.stream()).into_iter().map(|tokens| {
            let dollar = tokens.iter().position(|token| token.to_string() == "$")?;
            let words = tokens[..dollar].iter().map(ToString::to_string).collect();
            match tokens.get(dollar + 1)? {
                TokenTree::Ident(name) => Some((words, name.to_string())),
                _ => None,
            }
        });
        if body.delimiter() != Delimiter::Brace {
            return None;
        }
        Some(Arm { arguments: arguments.collect::<Option<_>>()?, body: body.stream() })
    };
    groups.chunks(2).filter_map(arm).collect()
}

fn split_at_commas(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut parts: Vec<Vec<TokenTree>> = vec![Vec::new()];
    for token in tokens {
        match &token {
            TokenTree::Punct(mark) if mark.as_char() == ',' => parts.push(Vec::new()),
            _ => parts.last_mut().unwrap().push(token),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Replaces each `$name` with its tokens.
fn substitute(tokens: TokenStream, values: &HashMap<String, TokenStream>) -> TokenStream {
    let mut out = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '$' => {
                let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
                out.extend(values.get(&name).cloned().unwrap_or_default());
            }
            TokenTree::Group(group) => {
                let inner = substitute(group.stream(), values);
                out.extend([TokenTree::Group(proc_macro2::Group::new(group.delimiter(), inner))]);
            }
            token => out.extend([token]),
        }
    }
    out
}
