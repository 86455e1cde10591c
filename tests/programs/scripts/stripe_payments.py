"""Payments by Stripe: a customer, an intent, its confirmation; then several at once, asynchronously."""

import asyncio
import os

import stripe

stripe.api_key = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
stripe.api_base = os.environ["SERVER_URL"]
stripe.max_network_retries = 2
customer = stripe.Customer.create(email="ada@example.com", name="Ada")
intent = stripe.PaymentIntent.create(amount=1200, currency="eur", customer=customer.id)
print(customer.id, intent.id, intent.created, stripe.PaymentIntent.confirm(intent.id).status)


async def main() -> None:
    made = [stripe.Customer.create_async(email=f"{number}@example.com") for number in range(4)]
    for done in asyncio.as_completed(made):
        print((await done).id)


asyncio.run(main())
