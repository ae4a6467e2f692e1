//! Executes a template: statements, expressions, macros.

use super::eval::{Args, Eval, Result};
use super::text::{Pieces, Text};
use super::value::{Loop, Value};
use super::{filters, methods, tests};
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CompareOpKind, Expr, ForLoop, Macro, Stmt, UnaryOpKind,
};
use minijinja::value::ValueKind;
use std::cell::RefCell;
use std::rc::Rc;

/// How deep expressions, statements and macros may be within each other.
const MAX_DEPTH: usize = 160;

/// What comes after a statement.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Continue,
    Break,
}

impl<'t> Eval<'t> {
    /// What the template shows.
    pub(super) fn run(mut self, statements: &'t [Stmt<'t>]) -> Result<Pieces> {
        self.exec(statements)?;
        let out = self.out.pop().unwrap_or_default();
        if out.is_over() { Err(self.out_of_memory()) } else { Ok(out) }
    }

    /// One level deeper, as long as `work` takes.
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return self.fail("is nested too deep", "");
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn lookup(&self, name: &str) -> Option<&Value<'t>> {
        let find = |scope: &'_ Vec<(&'t str, Value<'t>)>| scope.iter().position(|(var, _)| *var == name);
        let inner = self.scopes.get(self.floor..).unwrap_or_default().iter().rev();
        let mut scopes = inner.chain(self.scopes.first());
        scopes.find_map(|scope| scope.get(find(scope)?).map(|(_, value)| value))
    }

    fn set(&mut self, name: &'t str, value: Value<'t>) {
        let Some(scope) = self.scopes.last_mut() else { return };
        match scope.iter_mut().find(|(var, _)| *var == name) {
            Some((_, old)) => *old = value,
            None => scope.push((name, value)),
        }
    }

    fn exec(&mut self, statements: &'t [Stmt<'t>]) -> Result<Flow> {
        for statement in statements {
            self.spend(1)?;
            let flow = self.deeper(|eval| eval.statement(statement))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'t Stmt<'t>) -> Result<Flow> {
        match statement {
            Stmt::Template(template) => return self.exec(&template.children),
            Stmt::EmitRaw(raw) => {
                if let Some(out) = self.out.last_mut() {
                    out.own(raw.raw);
                }
                self.take(raw.raw.len())?;
            }
            Stmt::EmitExpr(emit) => {
                let value = self.eval(&emit.expr)?;
                self.emit(&value)?;
            }
            Stmt::IfCond(_) => return self.condition(statement),
            Stmt::ForLoop(each) => return self.each(each),
            Stmt::Set(set) => {
                let value = self.eval(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            Stmt::SetBlock(set) => {
                let mut value = self.capture(&set.body)?;
                if let Some(filter) = &set.filter {
                    value = self.filtered(filter, value)?;
                }
                self.assign(&set.target, value)?;
            }
            Stmt::FilterBlock(block) => {
                let value = self.capture(&block.body)?;
                let value = self.filtered(&block.filter, value)?;
                self.emit(&value)?;
            }
            Stmt::WithBlock(with) => {
                let mut scope = Vec::new();
                for (target, value) in &with.assignments {
                    scope.push((target, self.eval(value)?));
                }
                self.scopes.push(Vec::new());
                for (target, value) in scope {
                    self.assign(target, value)?;
                }
                let flow = self.exec(&with.body);
                self.scopes.pop();
                return flow;
            }
            Stmt::AutoEscape(block) => return self.exec(&block.body),
            Stmt::Macro(declared) => self.set(declared.name, Value::Macro(declared)),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Break(_) => return Ok(Flow::Break),
            Stmt::Do(run) => drop(self.call(&run.call)?),
            Stmt::CallBlock(_) => return self.fail("uses a block that is not supported", "call"),
        }
        Ok(Flow::Next)
    }

    fn emit(&mut self, value: &Value<'t>) -> Result<()> {
        let Some(mut out) = self.out.pop() else { return Ok(()) };
        let before = out.len();
        let shown = self.show(value, &mut out);
        let (len, is_over) = (out.len() - before, out.is_over());
        self.out.push(out);
        shown?;
        if is_over { Err(self.out_of_memory()) } else { self.take(len) }
    }

    /// What statements show.
    fn capture(&mut self, body: &'t [Stmt<'t>]) -> Result<Value<'t>> {
        self.out.push(self.pieces());
        let done = self.exec(body);
        let pieces = self.out.pop().unwrap_or_default();
        done?;
        self.text(pieces)
    }

    fn condition(&mut self, mut statement: &'t Stmt<'t>) -> Result<Flow> {
        // An `elif` is a condition within the other branch.
        while let Stmt::IfCond(branch) = statement {
            self.spend(1)?;
            if self.eval(&branch.expr)?.is_true() {
                return self.exec(&branch.true_body);
            }
            match branch.false_body.as_slice() {
                [only @ Stmt::IfCond(_)] => statement = only,
                body => return self.exec(body),
            }
        }
        Ok(Flow::Next)
    }

    fn each(&mut self, each: &'t ForLoop<'t>) -> Result<Flow> {
        if each.recursive {
            return self.fail("uses a loop that is not supported", "recursive");
        }
        let over = self.eval(&each.iter)?;
        let mut items = self.items(&over)?;
        if let Some(filter) = &each.filter_expr {
            let mut kept = Vec::new();
            for item in items {
                self.spend(1)?;
                self.scopes.push(Vec::new());
                let keeps = self.assign(&each.target, item.clone()).and_then(|()| self.eval(filter));
                self.scopes.pop();
                if keeps?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.exec(&each.else_body);
        }
        let Value::List(items) = self.list(items)? else { return Ok(Flow::Next) };
        self.loops += 1;
        let (count, depth) = (items.items.len(), self.loops);
        for index in 0..count {
            self.spend(1)?;
            let Some(item) = items.items.get(index) else { break };
            let state = Loop { index, items: Rc::clone(&items), depth };
            self.scopes.push(vec![("loop", Value::Loop(Rc::new(state)))]);
            let flow = self.assign(&each.target, item.clone()).and_then(|()| self.exec(&each.body));
            self.scopes.pop();
            if flow? == Flow::Break {
                break;
            }
        }
        self.loops -= 1;
        Ok(Flow::Next)
    }

    fn assign(&mut self, target: &'t Expr<'t>, value: Value<'t>) -> Result<()> {
        match target {
            Expr::Var(var) => self.set(var.id, value),
            Expr::List(targets) => {
                let items = self.items(&value)?;
                if items.len() != targets.items.len() {
                    return self
                        .fail("assigns another number of values than it names", items.len().to_string());
                }
                for (target, item) in targets.items.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
            Expr::GetAttr(attr) => {
                let Value::Namespace(namespace) = self.eval(&attr.expr)? else {
                    return self.fail("changes what is no namespace", attr.name);
                };
                // What can change may not be part of itself.
                if matches!(value, Value::Namespace(_) | Value::Loop(_)) {
                    return self.fail("puts what cannot be there into a namespace", value.kind());
                }
                let mut vars = namespace.borrow_mut();
                match vars.iter_mut().find(|(name, _)| *name == attr.name) {
                    Some((_, old)) => *old = value,
                    None => vars.push((attr.name, value)),
                }
            }
            _ => return self.fail("assigns to what cannot be changed", target.description()),
        }
        Ok(())
    }

    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'t Expr<'t>) -> Result<Value<'t>> {
        self.spend(1)?;
        self.line = expr.span().start_line.into();
        self.deeper(|eval| eval.expression(expr))
    }

    fn expression(&mut self, expr: &'t Expr<'t>) -> Result<Value<'t>> {
        match expr {
            Expr::Var(var) => Ok(self.variable(var.id)),
            Expr::Const(value) => self.constant(&value.value),
            Expr::UnaryOp(op) => {
                let value = self.eval(&op.expr)?;
                match op.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => self.arithmetic(BinOpKind::Sub, &Value::Int(0), &value),
                }
            }
            Expr::BinOp(_) => self.chain(expr),
            Expr::Compare(compare) => {
                let mut left = self.eval(&compare.expr)?;
                for op in &compare.ops {
                    let right = self.eval(&op.expr)?;
                    if !self.compare(op.op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::IfExpr(choice) => match (self.eval(&choice.test_expr)?.is_true(), &choice.false_expr) {
                (true, _) => self.eval(&choice.true_expr),
                (false, Some(other)) => self.eval(other),
                (false, None) => Ok(Value::Undefined),
            },
            Expr::Filter(_) => self.filtered(expr, Value::Undefined),
            Expr::Test(test) => {
                let value = self.eval(&test.expr)?;
                let args = self.args(&test.args)?;
                tests::test(self, test.name, &value, &args).map(Value::Bool)
            }
            Expr::GetAttr(attr) => {
                let value = self.eval(&attr.expr)?;
                self.attribute(&value, attr.name)
            }
            Expr::GetItem(get) => {
                let value = self.eval(&get.expr)?;
                let key = self.eval(&get.subscript_expr)?;
                self.item(&value, &key)
            }
            Expr::Slice(slice) => {
                let value = self.eval(&slice.expr)?;
                let mut bounds = [None; 3];
                for (bound, expr) in bounds.iter_mut().zip([&slice.start, &slice.stop, &slice.step]) {
                    if let Some(expr) = expr {
                        let number = self.eval(expr)?;
                        *bound = match (number.as_int(), &number) {
                            (None, Value::None) => None,
                            (None, other) => return self.fail("slices by what is no number", other.kind()),
                            (number, _) => number,
                        };
                    }
                }
                self.sliced(&value, bounds)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let items: Result<Vec<Value<'t>>> = list.items.iter().map(|item| self.eval(item)).collect();
                self.list(items?)
            }
            Expr::Map(map) => {
                let mut pairs = Vec::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let Value::Text(key) = self.eval(key)? else {
                        return self.fail("has a dictionary with another key than a string", "");
                    };
                    pairs.push((key, self.eval(value)?));
                }
                self.map(pairs)
            }
        }
    }

    fn variable(&self, name: &str) -> Value<'t> {
        if let Some(value) = self.lookup(name) {
            return value.clone();
        }
        let named = methods::FUNCTIONS.iter().find(|function| **function == name);
        match named {
            Some(&"strftime_now") if self.now.is_none() => Value::Undefined,
            Some(function) => Value::Function(function),
            None => Value::Undefined,
        }
    }

    fn constant(&mut self, value: &minijinja::Value) -> Result<Value<'t>> {
        match value.kind() {
            ValueKind::Undefined => Ok(Value::Undefined),
            ValueKind::None => Ok(Value::None),
            ValueKind::Bool => Ok(Value::Bool(value.is_true())),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                self.take(text.len())?;
                Ok(Value::own(text))
            }
            ValueKind::Number if value.is_integer() => match value.as_i64() {
                Some(number) => Ok(Value::Int(number)),
                None => self.fail("has a number that is too large", ""),
            },
            ValueKind::Number => Ok(Value::Float(f64::try_from(value.clone()).unwrap_or(f64::NAN))),
            _ => self.fail("has a constant that is not supported", value.kind().to_string()),
        }
    }

    /// Operators from left to right: a long sum is as deep as it is long.
    fn chain(&mut self, expr: &'t Expr<'t>) -> Result<Value<'t>> {
        let (mut first, mut rest) = (expr, Vec::new());
        while let Expr::BinOp(op) = first {
            rest.push((op.op, &op.right, expr.span().start_line));
            first = &op.left;
        }
        let mut left = self.eval(first)?;
        for (op, right, line) in rest.into_iter().rev() {
            self.spend(1)?;
            left = match (op, left.is_true()) {
                (BinOpKind::ScAnd, false) | (BinOpKind::ScOr, true) => continue,
                (BinOpKind::ScAnd, true) | (BinOpKind::ScOr, false) => self.eval(right)?,
                _ => {
                    let right = self.eval(right)?;
                    self.line = line.into();
                    self.binary(op, &left, &right)?
                }
            };
        }
        Ok(left)
    }

    fn binary(&mut self, op: BinOpKind, left: &Value<'t>, right: &Value<'t>) -> Result<Value<'t>> {
        let compare = match op {
            BinOpKind::Eq => CompareOpKind::Eq,
            BinOpKind::Ne => CompareOpKind::Ne,
            BinOpKind::Lt => CompareOpKind::Lt,
            BinOpKind::Lte => CompareOpKind::Lte,
            BinOpKind::Gt => CompareOpKind::Gt,
            BinOpKind::Gte => CompareOpKind::Gte,
            BinOpKind::In => CompareOpKind::In,
            BinOpKind::Concat => {
                let mut pieces = self.pieces();
                self.show(left, &mut pieces)?;
                self.show(right, &mut pieces)?;
                return self.text(pieces);
            }
            BinOpKind::ScAnd
            | BinOpKind::ScOr
            | BinOpKind::Add
            | BinOpKind::Sub
            | BinOpKind::Mul
            | BinOpKind::Div
            | BinOpKind::FloorDiv
            | BinOpKind::Rem
            | BinOpKind::Pow => return self.arithmetic(op, left, right),
        };
        self.compare(compare, left, right).map(Value::Bool)
    }

    fn arithmetic(&mut self, op: BinOpKind, left: &Value<'t>, right: &Value<'t>) -> Result<Value<'t>> {
        match (op, left, right) {
            (BinOpKind::Add, Value::Text(a), Value::Text(b)) => {
                let mut pieces = self.pieces();
                pieces.text(a);
                pieces.text(b);
                return self.text(pieces);
            }
            (BinOpKind::Add, Value::List(a), Value::List(b)) => {
                self.take(size_of_val(a.items.as_slice()) + size_of_val(b.items.as_slice()))?;
                let items = a.items.iter().chain(&b.items).cloned().collect();
                return self.list(items);
            }
            (BinOpKind::Mul, Value::Text(text), times) | (BinOpKind::Mul, times, Value::Text(text)) => {
                if let Some(times) = times.as_int() {
                    let mut pieces = self.pieces();
                    let times = usize::try_from(times).unwrap_or(0);
                    self.spend(times.saturating_mul(1 + text.len() / 16))?;
                    (0..times).for_each(|_| pieces.text(text));
                    return self.text(pieces);
                }
            }
            _ => {}
        }
        let found = || format!("{} and {}", left.kind(), right.kind());
        let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
            return self.fail("calculates with what are no numbers", found());
        };
        let whole = left.as_int().zip(right.as_int());
        let integer = match (op, whole) {
            (BinOpKind::Add, Some((a, b))) => Some(a.checked_add(b)),
            (BinOpKind::Sub, Some((a, b))) => Some(a.checked_sub(b)),
            (BinOpKind::Mul, Some((a, b))) => Some(a.checked_mul(b)),
            (BinOpKind::FloorDiv, Some((a, b))) => Some(
                a.checked_div_euclid(b).map(|q| q - i64::from(b < 0 && a.checked_rem_euclid(b) != Some(0))),
            ),
            (BinOpKind::Rem, Some((a, b))) => {
                Some(a.checked_rem_euclid(b).map(|r| if b < 0 && r != 0 { r + b } else { r }))
            }
            (BinOpKind::Pow, Some((a, b))) if b >= 0 => {
                Some(u32::try_from(b).ok().and_then(|power| a.checked_pow(power)))
            }
            _ => None,
        };
        if let Some(integer) = integer {
            return match integer {
                Some(number) => Ok(Value::Int(number)),
                None => self.fail("divides by zero, or has a number that is too large", ""),
            };
        }
        Ok(Value::Float(match op {
            BinOpKind::Add => a + b,
            BinOpKind::Sub => a - b,
            BinOpKind::Mul => a * b,
            BinOpKind::Pow => a.powf(b),
            _ if b == 0.0 => return self.fail("divides by zero", ""),
            BinOpKind::Div => a / b,
            BinOpKind::FloorDiv => (a / b).floor(),
            _ => a - b * (a / b).floor(),
        }))
    }

    /// `value[key]`
    fn item(&mut self, value: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>> {
        let place = |count: usize, at: i64| {
            let at = if at < 0 { at.checked_add_unsigned(count as u64)? } else { at };
            usize::try_from(at).ok()
        };
        match (value, key) {
            (Value::List(list), key) if key.as_int().is_some() => {
                let at = place(list.items.len(), key.as_int().unwrap_or(0));
                Ok(at.and_then(|at| list.items.get(at)).cloned().unwrap_or(Value::Undefined))
            }
            (Value::Text(text), key) if key.as_int().is_some() => {
                self.spend(text.len() / 8)?;
                let at = place(text.as_str().chars().count(), key.as_int().unwrap_or(0));
                let found = at.and_then(|at| text.as_str().char_indices().nth(at));
                match found {
                    Some((at, c)) => self.part(text, at..at + c.len_utf8()),
                    None => Ok(Value::Undefined),
                }
            }
            (Value::Undefined, key) => {
                self.fail("reads from what is undefined", key.as_str().unwrap_or(key.kind()))
            }
            (value, Value::Text(name)) => self.attribute(value, name.as_str()),
            _ => Ok(Value::Undefined),
        }
    }

    /// `value[start:stop:step]`
    fn sliced(&mut self, value: &Value<'t>, [start, stop, step]: [Option<i64>; 3]) -> Result<Value<'t>> {
        let step = step.unwrap_or(1);
        if step == 0 {
            return self.fail("slices in steps of zero", "");
        }
        if let (Value::Text(text), 1) = (value, step) {
            return self.sliced_text(text, start, stop);
        }
        let items = match value {
            Value::Text(_) | Value::List(_) | Value::Undefined => self.items(value)?,
            other => return self.fail("slices what has no items", other.kind()),
        };
        let count = items.len() as i64;
        // As Python adjusts indices.
        let (low, high) = if step > 0 { (0, count) } else { (-1, count - 1) };
        let clamp = |at: i64| if at < 0 { at.saturating_add(count).max(low) } else { at.min(high) };
        let (mut at, stop) = match step > 0 {
            true => (start.map_or(0, clamp), stop.map_or(count, clamp)),
            false => (start.map_or(count - 1, clamp), stop.map_or(-1, clamp)),
        };
        let mut chosen = Vec::new();
        while if step > 0 { at < stop } else { at > stop } {
            self.spend(1)?;
            chosen.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
            at = at.saturating_add(step);
        }
        if !matches!(value, Value::Text(_)) {
            return self.list(chosen);
        }
        let mut pieces = self.pieces();
        for item in &chosen {
            self.show(item, &mut pieces)?;
        }
        self.text(pieces)
    }

    /// `text[start:stop]`
    fn sliced_text(&mut self, text: &Text, start: Option<i64>, stop: Option<i64>) -> Result<Value<'t>> {
        self.spend(1 + text.len() / 4)?;
        let count = text.as_str().chars().count();
        let clamp = |at: i64| match usize::try_from(at) {
            Ok(at) => at.min(count),
            Err(_) => count.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(count)),
        };
        let byte = |at: usize| text.as_str().char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
        let (start, stop) = (byte(start.map_or(0, clamp)), byte(stop.map_or(count, clamp)));
        self.part(text, start..stop.max(start))
    }

    fn args(&mut self, args: &'t [CallArg<'t>]) -> Result<Args<'t>> {
        let (mut list, mut named) = (Vec::new(), Vec::new());
        for arg in args {
            match arg {
                CallArg::Pos(expr) => list.push(self.eval(expr)?),
                CallArg::Kwarg(name, expr) => named.push((*name, self.eval(expr)?)),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    return self.fail("calls in a way that is not supported", "*");
                }
            }
        }
        Ok(Args { list, named })
    }

    /// A filter, whose input is `before` if it has no expression of its own.
    fn filtered(&mut self, expr: &'t Expr<'t>, before: Value<'t>) -> Result<Value<'t>> {
        let Expr::Filter(filter) = expr else {
            return self.fail("filters by what is no filter", expr.description());
        };
        let value = match &filter.expr {
            Some(expr @ Expr::Filter(_)) => self.deeper(|eval| eval.filtered(expr, before))?,
            Some(expr) => self.eval(expr)?,
            None => before,
        };
        let args = self.args(&filter.args)?;
        self.line = expr.span().start_line.into();
        filters::filter(self, filter.name, &value, &args)
    }

    fn call(&mut self, call: &'t Call<'t>) -> Result<Value<'t>> {
        match &call.expr {
            Expr::GetAttr(attr) => {
                let value = self.eval(&attr.expr)?;
                let args = self.args(&call.args)?;
                if let Value::Namespace(_) | Value::Map(_) = value
                    && let Value::Macro(called) = self.attribute(&value, attr.name)?
                {
                    return self.run_macro(called, args);
                }
                methods::method(self, &value, attr.name, &args)
            }
            expr => {
                let function = self.eval(expr)?;
                let args = self.args(&call.args)?;
                match (function, expr) {
                    (Value::Macro(called), _) => self.run_macro(called, args),
                    (Value::Function("namespace"), _) => {
                        Ok(Value::Namespace(Rc::new(RefCell::new(args.named))))
                    }
                    (Value::Function(name), _) => methods::function(self, name, &args),
                    (_, Expr::Var(var)) => self.fail("calls what is no function", var.id),
                    (_, expr) => self.fail("calls what is no function", expr.description()),
                }
            }
        }
    }

    fn run_macro(&mut self, called: &'t Macro<'t>, args: Args<'t>) -> Result<Value<'t>> {
        if args.list.len() > called.args.len() {
            return self.fail("calls a macro with too many arguments", called.name);
        }
        let (floor, loops) = (self.floor, self.loops);
        let mut scope = Vec::new();
        let required = called.args.len() - called.defaults.len();
        for (place, param) in called.args.iter().enumerate() {
            let Expr::Var(param) = param else { continue };
            let value = match (args.get(place, param.id), place.checked_sub(required)) {
                (Some(value), _) => value.clone(),
                (None, Some(at)) => match called.defaults.get(at) {
                    Some(default) => self.eval(default)?,
                    None => Value::Undefined,
                },
                (None, None) => Value::Undefined,
            };
            scope.push((param.id, value));
        }
        self.floor = self.scopes.len();
        self.loops = 0;
        self.scopes.push(scope);
        let shown = self.deeper(|eval| eval.capture(&called.body));
        self.scopes.truncate(self.floor);
        (self.floor, self.loops) = (floor, loops);
        shown
    }
}
